"""Settings of the process are in a worker what they are in its parent."""

from __future__ import annotations

import csv
import decimal
import gc
import json
import locale
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from aloader.channel import defaults

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.usefixtures("nothing_left")

APPLY = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
import pickle
from aloader.channel import defaults
defaults.apply(pickle.loads(open(sys.argv[1], "rb").read()))
import csv, decimal, faulthandler, gc, json, locale, socket
import numpy as np, torch
print(json.dumps(dict(
    recursion=sys.getrecursionlimit(), gc=gc.isenabled(), threshold=gc.get_threshold(), fault=faulthandler.is_enabled(),
    numpy=np.geterr()["divide"], dtype=str(torch.get_default_dtype()), grad=torch.is_grad_enabled(),
    precision=torch.get_float32_matmul_precision(), deterministic=torch.are_deterministic_algorithms_enabled(),
    warn_only=torch.is_deterministic_algorithms_warn_only_enabled(), third=str(decimal.Decimal(1) / 3),
    locale=locale.setlocale(locale.LC_NUMERIC), socket=socket.getdefaulttimeout(), csv=csv.field_size_limit(),
)))
"""


def set_for_now(stack: ExitStack, setting: Callable[..., Any], value: Any, before: Any) -> None:
    setting(value)
    stack.callback(setting, before)


@pytest.mark.slow
def test_they_are_taken_over(tmp_path):
    with ExitStack() as stack:
        set_for_now(stack, sys.setrecursionlimit, 4321, sys.getrecursionlimit())
        threshold = gc.get_threshold()
        stack.callback(gc.set_threshold, *threshold)
        gc.set_threshold(701, 11, 12)
        gc.disable()
        stack.callback(gc.enable)
        stack.enter_context(np.errstate(divide="raise"))
        set_for_now(stack, torch.set_default_dtype, torch.float64, torch.float32)
        stack.enter_context(torch.no_grad())
        set_for_now(stack, torch.set_float32_matmul_precision, "high", torch.get_float32_matmul_precision())
        set_for_now(stack, torch.set_deterministic_debug_mode, "warn", "default")
        stack.enter_context(decimal.localcontext()).prec = 5
        set_for_now(stack, socket.setdefaulttimeout, 12.5, socket.getdefaulttimeout())
        set_for_now(stack, csv.field_size_limit, 777, csv.field_size_limit())
        file = tmp_path / "defaults"
        file.write_bytes(pickle.dumps(defaults.capture()))
    done = subprocess.run([sys.executable, "-c", APPLY, str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "recursion": 4321,
        "gc": False,
        "threshold": [701, 11, 12],
        "fault": True,  # pytest's own setting
        "numpy": "raise",
        "dtype": "torch.float64",
        "grad": False,
        "precision": "high",
        "deterministic": True,
        "warn_only": True,
        "third": "0.33333",
        "locale": locale.setlocale(locale.LC_NUMERIC),
        "socket": 12.5,
        "csv": 777,
    }


def test_applying_what_was_captured_changes_nothing():
    before = defaults.capture()
    defaults.apply(pickle.loads(pickle.dumps(before)))
    after = defaults.capture()
    assert str(before.pop("decimal")) == str(after.pop("decimal"))
    assert before == after


def test_libraries_that_are_not_there_are_not_loaded(monkeypatch):
    for name in ("csv", "locale", "decimal", "socket"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert not {"csv", "locale", "decimal", "socket"} & defaults.capture().keys()
