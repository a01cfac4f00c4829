"""`examples/benchmarks/object_store.py` runs, checks what it gets, by aloader and by its client alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def test_a_small_comparison_gives_figures(tmp_path: Path) -> None:
    program = ROOT / "examples" / "benchmarks" / "object_store.py"
    contenders = ["--contender", "aloader", "bare client", "s3torchconnector"]
    settings = ["--quick", "--latency", "express", "--size", "4096", "--workers", "1", "--seconds", "0.2"]
    written = ["--json", str(tmp_path / "found.json")]
    done = subprocess.run(
        [sys.executable, str(program), *settings, *contenders, *written],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert 's3torchconnector is left out: pip install "s3torchconnector"' in done.stdout
    (result,) = json.loads((tmp_path / "found.json").read_text())["results"]
    assert set(result["found"]) == {"aloader", "bare client"}
    assert all(row["rates"][0] > 0 and row["cpu"][0] > 0 for row in result["found"].values())
