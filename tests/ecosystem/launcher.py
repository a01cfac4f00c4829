"""Starts the programs of this folder. Imports no framework, as the tests themselves: they are collected without any."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent

#: The machine may be slow, and a program imports its framework in each of its processes and their templates.
SECONDS = 900


def needs(framework: str) -> pytest.MarkDecorator:
    """Skips where a framework is not installed."""
    reason = f"{framework} is not installed: make test-ecosystem"
    return pytest.mark.skipif(importlib.util.find_spec(framework) is None, reason=reason)


def launch(program: str, processes: int, folder: Path) -> list[dict[str, Any]]:
    """Run a program of this folder in so many processes, by torchrun. What each of them has saved."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *ranks, "-m", f"tests.ecosystem.{program}", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    assert "never awaited" not in done.stderr, done.stderr
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


def once_each(shares: list[list[int]], n: int) -> bool:
    """Whether the ranks' shares together are every sample exactly once, and of one size."""
    return sorted(index for share in shares for index in share) == list(range(n)) and len({*map(len, shares)}) == 1
