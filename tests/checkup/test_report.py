"""How a report reads, and that a look which fails or hangs is a line of it."""

from __future__ import annotations

import json
import threading

import pytest

from aloader.checkup.bounded import Exam, held
from aloader.checkup.report import WIDTH, Check, Report, ok, problem, warning
from aloader.checkup.words import counted, seconds, size

LONG = "words and more words, " * 12


def test_a_report_is_aligned_and_narrow_and_says_the_remedy_below_its_finding() -> None:
    report = Report((ok("memory", "enough"), warning("a longer name", LONG, LONG), problem("x", "gone", "get it")))
    lines = str(report).splitlines()
    assert lines[0] == "ok       memory         enough"
    assert lines[1].startswith("warning  a longer name  words and")
    assert lines[-4:] == [
        "problem  x              gone",
        " " * 24 + "→ get it",
        "",
        "1 problem and 1 warning, of 3 checks.",
    ]
    assert max(map(len, lines)) <= WIDTH
    assert all(line[:24].strip() == "" for line in lines[2:-4])


def test_warnings_are_no_problem() -> None:
    assert str(Report((ok("a", "b"),))).endswith("All is well.")
    fine = Report((ok("a", "b"), warning("c", "d"), warning("e", "f")))
    assert fine.ok
    assert str(fine).endswith("2 warnings, of 3 checks.")
    assert not Report((*fine.checks, problem("g", "h"))).ok


def test_programs_read_the_same_as_json() -> None:
    found = json.loads(json.dumps(Report((problem("memfd", "none", "allow it"),)).as_dict()))
    check = {"name": "memfd", "state": "problem", "finding": "none", "remedy": "allow it"}
    assert found == {"ok": False, "checks": [check]}


def test_a_look_that_hangs_is_a_problem_and_holds_nobody_up() -> None:
    gate = threading.Event()

    def hangs() -> list[Check]:
        gate.wait(20)
        return []

    (found,) = held(Exam("nfs", 0.02, hangs))
    gate.set()
    assert (found.name, found.state) == ("nfs", "problem")
    assert "not done after 20 ms" in found.finding


@pytest.mark.parametrize("error", [OSError("no such\nfile"), SystemExit(3), KeyboardInterrupt()])
def test_a_look_that_fails_is_a_finding(error: BaseException) -> None:
    def fails() -> list[Check]:
        raise error

    (found,) = held(Exam("clock", 5, fails))
    assert (found.name, found.state) == ("clock", "warning")
    assert type(error).__name__ in found.finding
    assert "\n" not in found.finding


def test_sizes_and_times_are_words() -> None:
    assert [size(n) for n in (7, 2048, 3 << 20, 1536 << 20)] == ["7 bytes", "2.0 KiB", "3.0 MiB", "1.5 GiB"]
    assert [seconds(s) for s in (0.0123, 0.25, 1, 12.34)] == ["12.3 ms", "250 ms", "1.0 s", "12.3 s"]
    assert [counted(n, "CPU") for n in (1, 2)] == ["1 CPU", "2 CPUs"]
