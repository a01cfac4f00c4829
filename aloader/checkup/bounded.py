"""One look within its time. Whatever goes wrong in it, a hang included, is a finding and not an exception.

A thread cannot be stopped. One that hangs (on a file system whose server is gone, say) is left to itself: it is a
daemon, and ends with the program.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aloader.checkup.report import Check, problem, warning
from aloader.checkup.words import seconds


@dataclass(frozen=True, slots=True)
class Exam:
    """What one look is about, the seconds that it has, and the look itself."""

    name: str
    deadline: float
    look: Callable[[], Iterable[Check]]


def held(exam: Exam) -> list[Check]:
    """What has been found, in the time that there is."""
    found: list[Check] = []
    thread = threading.Thread(target=_look, args=(exam, found), name=f"aloader-doctor-{exam.name}", daemon=True)
    thread.start()
    thread.join(exam.deadline)
    if thread.is_alive():
        text = f"not done after {seconds(exam.deadline)}: what was looked at here does not answer"
        return [problem(exam.name, text, "look at the machine's load, and for file systems or servers that hang")]
    return found


def _look(exam: Exam, found: list[Check]) -> None:
    try:
        found += exam.look()
    except BaseException as error:  # a look that exits is no reason to have no report
        text = f"could not be looked at: {type(error).__name__}: {error}"
        found.append(warning(exam.name, " ".join(text.split())[:500]))
