"""What has been found, and how it is printed. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

State = Literal["ok", "warning", "problem"]

#: Columns of a printed report.
WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what was found, and where it is not as it should be, what to change."""

    name: str
    state: State
    finding: str
    remedy: str = ""


def ok(name: str, finding: str) -> Check:
    """As it should be."""
    return Check(name, "ok", finding)


def warning(name: str, finding: str, remedy: str = "") -> Check:
    """Something that works, and may stand in the way."""
    return Check(name, "warning", finding, remedy)


def problem(name: str, finding: str, remedy: str = "") -> Check:
    """Something with which loaders, or what was asked for, do not work."""
    return Check(name, "problem", finding, remedy)


@dataclass(frozen=True, slots=True)
class Report:
    """All checks, in order. As text it is what `aloader doctor` prints."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Whether there is no problem. (Warnings are none.)"""
        return all(check.state != "problem" for check in self.checks)

    def count(self, state: State) -> int:
        """How many checks came out so."""
        return sum(check.state == state for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}

    def __str__(self) -> str:
        names = max((len(check.name) for check in self.checks), default=0)
        lines = [line for check in self.checks for line in _lines(check, names)]
        return "\n".join([*lines, "", self._summary()])

    def _summary(self) -> str:
        found = [(self.count("problem"), "problem"), (self.count("warning"), "warning")]
        words = [f"{count} {state}{'s' * (count != 1)}" for count, state in found if count]
        return f"{' and '.join(words)}, of {len(self.checks)} checks." if words else "All is well."


def _lines(check: Check, names: int) -> Iterator[str]:
    head = f"{check.state:<9}{check.name:<{names}}  "
    yield from _wrapped(head, check.finding, len(head))
    if check.remedy:
        yield from _wrapped(f"{'':{len(head)}}→ ", check.remedy, len(head) + 2)


def _wrapped(head: str, text: str, indent: int) -> Iterable[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=head,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
