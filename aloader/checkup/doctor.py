"""The function `aloader.doctor`: which looks there are, in which order, and how long each may take."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aloader.checkup.bounded import Exam, held
from aloader.checkup.report import Check, Report

if TYPE_CHECKING:
    from aloader.storage.base import Store

#: Seconds of a look that only reads what the system says, and of those that start processes or ask a store.
QUICK: Final = 5.0
IMPORTS: Final = 60.0
STARTS: Final = 40.0
ASKS: Final = 20.0


def doctor(url: str | os.PathLike[str] | Store | None = None) -> Report:
    """Look at everything on this machine that a loader depends on; with a URL, path or store, also at what is there.

    Takes some seconds, as it really starts a worker (and a process to ask for an accelerator). Nothing is left of it.
    What cannot be looked at is a finding and no exception. `print(aloader.doctor())` prints what `aloader doctor` does;
    `report.ok` says whether there is a problem, and `report.checks` has each check's name, state ("ok", "warning" or
    "problem"), finding and remedy.
    """
    place = os.fspath(url) if isinstance(url, os.PathLike) else url
    return Report(tuple(check for exam in exams(place) for check in held(exam)))


def exams(url: str | Store | None) -> Iterator[Exam]:
    """The looks, in the order of the report."""
    yield Exam("software", IMPORTS, partial(_software, url if isinstance(url, str) else ""))
    yield Exam("cpus", QUICK, partial(_subject, "cpus"))
    yield Exam("memory", QUICK, partial(_subject, "memory"))
    yield Exam("descriptors", QUICK, partial(_subject, "counts"))
    if sys.platform.startswith("linux"):
        yield Exam("kernel", QUICK, partial(_subject, "kernel"))
    yield Exam("surroundings", QUICK, partial(_subject, "surroundings"))
    if sys.platform != "win32":
        yield Exam("workers", STARTS, partial(_subject, "trial"))
    yield Exam("accelerator", STARTS, partial(_subject, "accelerator"))
    if url is not None:
        yield Exam("storage", ASKS, partial(_subject, "place", url))


def _subject(name: str, *about: Any) -> Iterable[Check]:
    """Look and judge. What a subject imports may be what is broken: it is imported within the look."""
    subject: Any = importlib.import_module(f"aloader.checkup.{name}")
    look: Callable[..., Any] = subject.look
    return list(subject.judge(look(*about)))


def _software(url: str) -> Iterable[Check]:
    from aloader.checkup import software

    return list(software.judge(software.look(), software.extra_for(url)))
