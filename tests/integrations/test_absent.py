"""The package does without the frameworks, and an integration without its framework says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["accelerate", "transformers"])
def test_an_integration_names_the_extra_that_it_needs(framework):
    code = (
        f"import sys; assert not {{'accelerate', 'transformers', 'aloader.integrations'}} & {{*sys.modules}}\n"
        f"sys.modules.update(accelerate=None, transformers=None)\n"
        f"import aloader, aloader.integrations\n"
        f"try:\n    import aloader.integrations.{framework}\n"
        f"except ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},  # as other programs that tests start
        capture_output=True,
        text=True,
        check=False,
    )
    assert "pip install 'aloader[" in done.stdout, done.stderr


def test_the_extras_are_declared():
    text = (ROOT / "pyproject.toml").read_text()
    assert all(f"\n{extra} = [" in text for extra in ("accelerate", "transformers", "ecosystem"))
