"""Where our loader differs from torch's on purpose: the whole list. What differs and is not here fails a test.

A row says why ours is better, and how the two are still compared: `explains` is given what is left of both logs where
they first differ, and says how many entries of each the row accounts for (None: it is not this).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple


class Entry(NamedTuple):
    """One thing that was seen: what it was, and what it looked like."""

    what: str
    value: Any


class Raised(NamedTuple):
    """An error: its type, its text, and what it says of a worker (its own text, notes and causes)."""

    kind: type[BaseException]
    text: str
    told: str

    @classmethod
    def of(cls, error: BaseException) -> Raised:
        """Of an exception that was caught."""
        causes, cause = [], error.__cause__
        while cause is not None:
            causes.append(str(cause))
            cause = cause.__cause__
        return cls(type(error), str(error), "\n".join([str(error), *getattr(error, "__notes__", ()), *causes]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Raised) and (self.kind, self.text) == (other.kind, other.text)

    def __hash__(self) -> int:
        return hash((self.kind, self.text))


class Difference(NamedTuple):
    """A row. `why` is for people."""

    why: str
    explains: Callable[[list[Entry], list[Entry]], tuple[int, int] | None]


def _both_raised(explains: Callable[[Raised, Raised], bool]) -> Callable[[Any, Any], tuple[int, int] | None]:
    """For a pair of errors in the same place."""

    def pair(torchs: list[Entry], ours: list[Entry]) -> tuple[int, int] | None:
        if not torchs or not ours or torchs[0].what != ours[0].what:
            return None
        one, other = torchs[0].value, ours[0].value
        if isinstance(one, Raised) and isinstance(other, Raised) and explains(one, other):
            return 1, 1
        return None

    return pair


def _original(torchs: Raised, ours: Raised) -> bool:
    """Torch's text begins with where it was caught and ends with the original; ours is the original, and tells both."""
    first_line = torchs.text.strip("'\"").split("\n")[0]
    same_kind = torchs.kind is ours.kind or (torchs.kind is RuntimeError and ours.kind.__name__ in first_line)
    return (
        same_kind
        and first_line.startswith(f"Caught {ours.kind.__name__} in DataLoader worker process")
        and first_line in ours.told
        and ours.text.strip("'") in torchs.text
        and "Traceback" in ours.told
    )


def _batch_for_error(torchs: list[Entry], ours: list[Entry]) -> tuple[int, int] | None:
    """Torch raises what it gives without workers, or what nobody asked for; ours is a batch."""
    instead = torchs and ours and ours[0].what.replace("batch", "error") == torchs[0].what
    return (1, 1) if instead and isinstance(torchs[0].value, Raised) else None


def _found_out_earlier(torchs: list[Entry], ours: list[Entry]) -> tuple[int, int] | None:
    """Our constructor raises; torch's loader is made, and raises when it is iterated."""
    late = [entry for entry in torchs if entry.what == "epoch 0: iter" and isinstance(entry.value, Raised)]
    if ours and ours[0].what == "constructor" and isinstance(ours[0].value, Raised) and late:
        return len(torchs), len(ours)
    return None


def _without(names: tuple[str, ...], value: Any) -> Any:
    """A description without some of what it says of memory: strides, or which leaves share theirs."""
    if isinstance(value, tuple) and len(value) == 2 and value[0] in names:
        return value[0]
    return type(value)(_without(names, item) for item in value) if type(value) in (tuple, list) else value


def _same_but_for(*names: str) -> Callable[[list[Entry], list[Entry]], tuple[int, int] | None]:
    """The same batch, but for what is said of memory under these names."""

    def pair(torchs: list[Entry], ours: list[Entry]) -> tuple[int, int] | None:
        if not torchs or not ours or torchs[0].what != ours[0].what:
            return None
        same = _without(names, torchs[0].value) == _without(names, ours[0].value)
        return (1, 1) if same else None

    return pair


def _rest(entries: list[Entry]) -> list[Entry]:
    """What is left of the epoch in which the logs differ, its end included."""
    ends = [place for place, entry in enumerate(entries) if entry.what.endswith(": end")]
    return entries[: ends[0] + 1] if ends else entries


def _stop_iteration(torchs: list[Entry], ours: list[Entry]) -> tuple[int, int] | None:
    """Torch's epoch is over, and ours goes on after an error."""
    told = ours[0].value.text if ours and isinstance(ours[0].value, Raised) else ""
    if torchs and torchs[0].what.endswith(": end") and "StopIteration" in told:
        return 0, len(_rest(ours)) - 1
    return None


def _errors(entries: list[Entry]) -> list[Raised]:
    return [entry.value for entry in entries if isinstance(entry.value, Raised)]


def _sampler_failed(torchs: list[Entry], ours: list[Entry]) -> tuple[int, int] | None:
    """The same error once; all batches of torch's are among ours, in order, and ours come before the error."""
    one, other = _rest(torchs), _rest(ours)
    batches = [entry for entry in other if "batch" in entry.what]
    theirs = iter(batches)
    among = all(entry in theirs for entry in one if "batch" in entry.what)
    last = [entry for entry in other if "batch" in entry.what or isinstance(entry.value, Raised)][-1:]
    if among and last and _errors(one) == _errors(other) == [last[0].value]:
        return len(one), len(other)
    return None


def _start_failed(torchs: Raised, ours: Raised) -> bool:
    """From the second batch of a worker on, torch's error is about its own variable."""
    return torchs.kind is UnboundLocalError and "fetcher" in torchs.text and ours.kind is not UnboundLocalError


def _said_more(torchs: list[Entry], ours: list[Entry]) -> tuple[int, int] | None:
    """A warning of ours alone; what torch warns of in the same place is in both."""
    if not ours or not ours[0].what.endswith(": warnings"):
        return None
    left = [warning for warning in ours[0].value if "has not asked which worker it is in" not in warning[1]]
    if len(left) == len(ours[0].value):
        return None
    if not left:
        return 0, 1
    return (1, 1) if torchs and torchs[0] == Entry(ours[0].what, left) else None


def _opened_later(torchs: list[Entry], ours: list[Entry]) -> tuple[int, int] | None:
    """The same error, from the first step and not from `aiter`; the generators have been drawn from in both."""
    if not torchs or len(ours) < 3 or not isinstance(torchs[0].value, Raised) or not torchs[0].what.endswith(": iter"):
        return None
    same = ours[0].what == torchs[0].what and ours[1].value == torchs[0].value and ours[2].value == ours[0].value
    return (1, 3) if same else None


def _late(torchs: list[Entry], ours: list[Entry]) -> tuple[int, int] | None:
    """Any number of times: torch's words first, then which worker and sample it is."""
    counts = []
    for entries in (torchs, ours):
        place = 0
        while place < len(entries) and any("timed out after 0.5 seconds" in e.text for e in _errors([entries[place]])):
            place += 2  # the error, and the generators after it
        counts.append(place)
    return (counts[0], counts[1]) if all(counts) else None


def _sizes_named(torchs: Raised, ours: Raised) -> bool:
    return torchs.kind is ours.kind is RuntimeError and "resize" in torchs.text and "equal size" in ours.text


def _detach_named(torchs: Raised, ours: Raised) -> bool:
    return torchs.kind is ours.kind is RuntimeError and "requires grad" in torchs.text and ".detach()" in ours.text


DIFFERENCES: Final[dict[str, Difference]] = {
    "the original error": Difference(
        "torch rebuilds an error from its class and one string, or makes it a RuntimeError; ours is the original with "
        "arguments and attributes, and says where it was caught in a note and a cause",
        _both_raised(_original),
    ),
    "found out earlier": Difference(
        "`prefetch_factor=0`, `timeout` without workers and a number of workers that is none are errors of the "
        "constructor, where the mistake is; torch raises them at the first `iter()`",
        _found_out_earlier,
    ),
    "stop iteration": Difference(
        "a map-style sample that raises StopIteration ends torch's epoch in silence, and the rest of the data is lost; "
        "ours is an error of that batch (as PEP 479 has it), and the others follow",
        _stop_iteration,
    ),
    "a sampler's error in its place": Difference(
        "torch raises a sampler's error when it draws ahead, in place of a batch that is then lost; ours comes when "
        "everything that the sampler gave has been delivered, as without workers",
        _sampler_failed,
    ),
    "failed start functions": Difference(
        "torch answers the first batch of each worker with the error, and the others with an UnboundLocalError of its "
        "own; ours answers every batch with the error",
        _both_raised(_start_failed),
    ),
    "late batches": Difference(
        "after torch's words, ours says which worker is at which sample, and for how long",
        _late,
    ),
    "views travel alone": Difference(
        "uncollated views of one large tensor take the whole of it along in torch, for every batch; ours travel alone "
        "where they do not touch each other",
        _same_but_for("shares"),
    ),
    "gaps are left out": Difference(
        "an uncollated view with gaps keeps its strides in torch, and what lies in the gaps travels along; ours is "
        "contiguous, and travels without them",
        _same_but_for("shares", "strides"),
    ),
    "unshared streams": Difference(
        "where several workers each read the whole of a stream and none has asked which it is, ours says so once",
        _said_more,
    ),
    "opened at the first step": Difference(
        "without workers, `async for` opens a stream in the thread that reads it, and not in `aiter`, which cannot "
        "wait: an error in that comes from the first step",
        _opened_later,
    ),
    "ragged batches": Difference(
        "a worker of torch's says that storage cannot be resized; ours says which sizes do not fit, as torch does "
        "without workers. The same type, at the same place",
        _both_raised(_sizes_named),
    ),
    "gradients": Difference(
        "samples that require grad cannot be stacked in a worker; ours says what to call",
        _both_raised(_detach_named),
    ),
    "conjugate tensors": Difference(
        "a worker of torch's cannot stack them, and loses the conjugation of one alone; ours gives torch's batch",
        _batch_for_error,
    ),
    "dataclasses": Difference(
        "torch refuses to collate dataclasses; ours gives the dataclass, with each field collated",
        _batch_for_error,
    ),
    "floats after integers": Difference(
        "a worker of torch's cannot stack them; ours gives the batch that torch gives without workers",
        _batch_for_error,
    ),
}
