"""A worker looks like its parent: what was captured in one process is what another finds after applying it."""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch

from aloader.channel import context

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.usefixtures("nothing_left")

#: Applies what it is given, and says what it looks like then.
APPLY = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import json, os, logging, warnings, torch
from aloader.channel import context
os.environ["ONLY_HERE"] = "1"
context.apply(open(sys.argv[1], "rb").read())
d = torch.distributed
mask = os.umask(0); os.umask(mask)
print(json.dumps(dict(
    environment=dict(os.environ), directory=os.getcwd(), path=sys.path, arguments=sys.argv, umask=mask,
    affinity=sorted(os.sched_getaffinity(0)), root=logging.getLogger().level, named=logging.getLogger("a.b").level,
    dtype=str(torch.get_default_dtype()), sharing=torch.multiprocessing.get_sharing_strategy(),
    rank=[d.get_rank(), d.get_world_size()] if d.is_initialized() else None,
    filters=[(f[0], f[2].__module__ + "." + f[2].__name__) for f in warnings.filters],
)))
"""


def run(code: str, file: Path) -> subprocess.CompletedProcess[str]:
    """In an environment like that of other programs that tests start, which has nothing of what a test has set."""
    environment = {name: value for name, value in os.environ.items() if name not in ("SOME_SETTING", "OMP_NUM_THREADS")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", code, str(file)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def applied(data: bytes, tmp_path: Path) -> dict[str, Any]:
    """What a new process looks like that has applied it."""
    file = tmp_path / "context"
    file.write_bytes(data)
    done = run(APPLY, file)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class Local(UserWarning):
    """Not to be found by name in the other process, which gets it by value."""


@pytest.mark.slow
def test_a_worker_takes_over_what_its_parent_looks_like(tmp_path, monkeypatch):
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "only_late.py").write_text("class LateWarning(UserWarning): pass")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_SETTING", "ä=b\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "late"), *sys.path])
    monkeypatch.setattr(sys, "argv", ["train.py", "--lr", "1"])
    monkeypatch.setattr(logging.getLogger("a.b"), "level", logging.DEBUG)
    monkeypatch.setattr(logging.getLogger(), "level", logging.ERROR)
    from only_late import LateWarning  # type: ignore[import-not-found]

    cores, mask = os.sched_getaffinity(0), os.umask(0o027)
    dtype, strategy = torch.get_default_dtype(), torch.multiprocessing.get_sharing_strategy()
    torch.set_default_dtype(torch.float64)
    torch.multiprocessing.set_sharing_strategy("file_system")
    os.sched_setaffinity(0, [min(cores)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LateWarning)
            warnings.filterwarnings("error", "odd", Local, "some.module")
            data = context.capture()
    finally:
        os.sched_setaffinity(0, cores)
        os.umask(mask)
        torch.set_default_dtype(dtype)
        torch.multiprocessing.set_sharing_strategy(strategy)
    found = applied(data, tmp_path)

    assert found["environment"]["SOME_SETTING"] == "ä=b\n"
    assert found["environment"]["OMP_NUM_THREADS"] == "1"  # the workers are the parallelism
    assert found["environment"]["TOKENIZERS_PARALLELISM"] == "false"
    assert "ONLY_HERE" not in found["environment"]
    assert found["directory"] == str(tmp_path)
    assert found["path"][0] == str(tmp_path / "late")
    assert found["arguments"] == ["train.py", "--lr", "1"]
    assert found["umask"] == 0o027
    assert found["affinity"] == [min(cores)]
    assert (found["root"], found["named"]) == (logging.ERROR, logging.DEBUG)
    assert (found["dtype"], found["sharing"]) == ("torch.float64", "file_system")
    assert found["rank"] is None
    assert [action for action, kind in found["filters"] if "LateWarning" in kind] == ["ignore"]
    assert [action for action, kind in found["filters"] if "Local" in kind] == ["error"]
    # the order is the meaning: the first filter that matches counts
    assert [a for a, kind in found["filters"]][:2] == ["error", "ignore"]


LATER = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import warnings
from aloader.channel import context
with open(sys.argv[1], "rb") as file:
    context.apply(file.read())
assert "still_later" not in sys.modules
import still_later
class Derived(still_later.LateWarning): pass
warnings.warn("filtered", still_later.LateWarning)
warnings.warn("filtered", Derived)
try:
    warnings.warn("not filtered", still_later.OtherWarning)
except still_later.OtherWarning:
    print("told apart")
"""


@pytest.mark.slow
def test_a_filter_imports_nothing_and_holds_once_the_module_is_imported(tmp_path, monkeypatch):
    text = "class LateWarning(UserWarning): pass\nclass OtherWarning(UserWarning): pass"
    (tmp_path / "still_later.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(ROOT), *sys.path])
    module = importlib.import_module("still_later")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", module.LateWarning)
        (tmp_path / "context").write_bytes(context.capture())
    done = run(LATER, tmp_path / "context")
    assert (done.returncode, done.stdout) == (0, "told apart\n"), done.stderr


@pytest.mark.slow
def test_a_worker_answers_as_its_parents_rank(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group=None: 3)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 8)
    monkeypatch.setattr(sys, "path", [str(ROOT), *sys.path])
    assert applied(context.capture(), tmp_path)["rank"] == [3, 8]


def test_a_filter_that_cannot_be_carried_is_left_out_and_the_others_are_not():
    class Unpicklable(UserWarning):
        lock = threading.Lock()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Unpicklable)
        warnings.filterwarnings("ignore", "some text", UserWarning)
        expected = [entry for entry in warnings.filters if entry[2] is not Unpicklable]
        found = cloudpickle.loads(context.capture())["filters"]
    assert len(found) == len(expected)


def test_capturing_changes_nothing_here(tmp_path, monkeypatch):
    mask = os.umask(0o077)
    try:
        before = dict(os.environ), list(sys.path), os.getcwd(), list(warnings.filters)
        context.capture()
        assert (dict(os.environ), list(sys.path), os.getcwd(), list(warnings.filters)) == before
        assert os.umask(0o077) == 0o077
    finally:
        os.umask(mask)


def test_a_deleted_directory_is_none_and_stays_out_of_the_way(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert cloudpickle.loads(context.capture())["directory"] is None
