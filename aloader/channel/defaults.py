"""Settings of the process that are neither environment nor flags in modules, as a fork would have them.

Only what a dataset's results or failures may depend on. Libraries that the parent has not loaded are not loaded here.
Not carried: the number of threads (one in workers), states of random generators (every worker is seeded), print
options, torch's default device.
"""

from __future__ import annotations

import faulthandler
import gc
import sys
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """This process's settings; all of it can be pickled."""
    found: dict[str, Any] = {
        "recursion": sys.getrecursionlimit(),
        "collecting": (gc.isenabled(), gc.get_threshold()),
        "faulthandler": faulthandler.is_enabled(),
        "numpy": np.geterr(),
        "dtype": torch.get_default_dtype(),
        "grad": torch.is_grad_enabled(),
        "precision": _precision(),
        "deterministic": torch.get_deterministic_debug_mode(),
    }
    if decimal := sys.modules.get("decimal"):
        found["decimal"] = decimal.getcontext().copy()
    if locale := sys.modules.get("locale"):
        found["locale"] = locale.setlocale(locale.LC_ALL)
    if socket := sys.modules.get("socket"):
        found["socket"] = socket.getdefaulttimeout()
    if csv := sys.modules.get("csv"):
        found["csv"] = csv.field_size_limit()
    return found


def apply(found: dict[str, Any]) -> None:
    """Make them this process's. What it has already is not touched: setting it may have a cost."""
    sys.setrecursionlimit(found["recursion"])
    collecting, threshold = found["collecting"]
    (gc.enable if collecting else gc.disable)()
    gc.set_threshold(*threshold)
    if found["faulthandler"] and not faulthandler.is_enabled():
        faulthandler.enable(sys.__stderr__ or 2)
    np.seterr(**found["numpy"])
    _apply_to_torch(found)
    if "decimal" in found:
        import decimal

        decimal.setcontext(found["decimal"].copy())
    if "locale" in found:
        import locale

        if locale.setlocale(locale.LC_ALL) != found["locale"]:
            locale.setlocale(locale.LC_ALL, found["locale"])
    if "socket" in found:
        import socket

        socket.setdefaulttimeout(found["socket"])
    if "csv" in found:
        import csv

        csv.field_size_limit(found["csv"])


def _apply_to_torch(found: dict[str, Any]) -> None:
    torch.set_default_dtype(found["dtype"])
    torch.set_grad_enabled(found["grad"])
    if found["precision"] is not None and found["precision"] != _precision():
        torch.set_float32_matmul_precision(found["precision"])
    torch.set_deterministic_debug_mode(found["deterministic"])  # `use_deterministic_algorithms` imports the inductor


def _precision() -> str | None:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # set by torch.backends' newer names, which this one does not know
        return None
