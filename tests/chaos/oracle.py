"""What must come out of a scenario, and whether it did. Knows nothing of loaders, processes or clocks.

`Expected` is worked out from the scenario alone; only an order that somebody shuffles, and numbers that somebody draws,
are taken from a run of the same loader that nobody disturbs (`expected_of`'s `order` and `drawn`).
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aloader.errors import WorkerLost

from .data import Corrupt, Field, content
from .scenario import Scenario

Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Expected:
    """One epoch. `batches` are indices in their order; samples of `corrupt` raise, those of `poison` kill their worker,
    and `on_error` says what comes in their place."""

    batches: tuple[tuple[int, ...], ...]
    checksums: Mapping[int, int]
    in_order: bool = True
    corrupt: frozenset[int] = frozenset()
    poison: frozenset[int] = frozenset()
    on_error: str = "raise"
    drawn: Mapping[int, float] | None = None  # None: nobody knows what is drawn
    seeded: bool = False  # that is a function of the index
    shares: bool = False  # each worker has a share of an iterable dataset, which is lost with it


def expected_of(scenario: Scenario, order: Sequence[int], drawn: Mapping[int, float] | None = None) -> Expected:
    """What an epoch of a scenario gives, of samples in this order."""
    batches = _of_shares(scenario) if scenario.kind == "stream" else tuple(_cut(scenario, order))
    checksums = {i: zlib.crc32(content(i, scenario.size_of(i))) for i in range(scenario.samples)}
    bad = frozenset(scenario.corrupt), frozenset(scenario.poison)
    seeded, shares = scenario.loader_seed is not None, scenario.kind == "stream"
    return Expected(batches, checksums, scenario.in_order, *bad, scenario.on_error, drawn, seeded, shares)


def _cut(scenario: Scenario, order: Sequence[int]) -> list[tuple[int, ...]]:
    size = scenario.batch_size
    cut = [tuple(order[at : at + size]) for at in range(0, len(order), size)]
    return cut[:-1] if cut and len(cut[-1]) < size and scenario.arguments["drop_last"] else cut


def _of_shares(scenario: Scenario) -> tuple[tuple[int, ...], ...]:
    """Each worker's batches in turn; who has come to an end is passed over."""
    workers = max(1, scenario.workers)
    shares = [_cut(scenario, range(worker, scenario.samples, workers)) for worker in range(workers)]
    turns = max(map(len, shares))
    return tuple(share[turn] for turn in range(turns) for share in shares if turn < len(share))


@dataclass(slots=True)
class Tally:
    """What an oracle has seen."""

    batches: int = 0
    samples: int = 0
    nbytes: int = 0
    lost: int = 0
    store_faults: Counter[int] = field(default_factory=Counter)  # by the worker's process: the latest it said


class EpochOracle:
    """Sees what one epoch gives, and complains. Every complaint is a sentence."""

    def __init__(self, expected: Expected, tally: Tally | None = None) -> None:
        self.expected = expected
        self.tally = tally or Tally()
        self.complaints: list[str] = []
        self.lost = 0
        self.ended_early = False  # with a loss: whoever could make the rest had no restarts left
        self._place = 0
        self._batches = [self._as_it_comes(batch) for batch in expected.batches]
        self._left = Counter(self._batches)
        raising = expected.on_error == "raise"
        self._corrupt = [batch for batch in expected.batches if raising and expected.corrupt.intersection(batch)]
        self._poison = [batch for batch in expected.batches if raising and expected.poison.intersection(batch)]

    def got(self, rows: Sequence[Row]) -> None:
        """A batch has come."""
        indices = tuple(row[Field.INDEX] for row in rows)
        self.tally.batches += 1
        self._arrived(indices)
        for row in rows:
            self._check(row)

    def failed(self, error: BaseException) -> None:
        """An error has come in a batch's place."""
        if isinstance(error, WorkerLost) and not self._fails(self._poison):
            self.lost += 1
            self.tally.lost += 1
            self._place += 1
        elif isinstance(error, Corrupt) and not self._fails(self._corrupt):
            self._place += 1
            self.complaints.append(f"a batch failed at place {self._place - 1} that has no corrupt sample: {error}")
        elif not isinstance(error, WorkerLost | Corrupt):
            self._place += 1
            self.complaints.append(f"{type(error).__name__} in the place of batch {self._place - 1}: {error}")

    def ended(self) -> None:
        """The epoch is over."""
        missing = sum(self._left.values())
        self.ended_early = self.lost > 0 and missing > self.lost
        if missing > self.lost and not self.lost:
            some = ", ".join(_short(batch) for batch in list(+self._left)[:3])
            self.complaints.append(f"the epoch ended {missing} batches short: {some}")

    # ---------------------------------------------------------------------------------------------------------------

    def _as_it_comes(self, batch: tuple[int, ...]) -> tuple[int, ...]:
        """Without the samples that are dropped; those in whose place another one comes are -1."""
        bad = self.expected.corrupt | self.expected.poison
        if self.expected.on_error == "drop":
            return tuple(index for index in batch if index not in bad)
        if self.expected.on_error == "skip":
            return tuple(-1 if index in bad else index for index in batch)
        return batch

    def _arrived(self, indices: tuple[int, ...]) -> None:
        place, self._place = self._place, self._place + 1
        known = self._recognized(indices)
        if self._left[known] < 1:
            which = "again" if known in self._left else "which is none of the epoch's"
            self.complaints.append(f"at place {place} came batch {_short(indices)} {which}")
            return
        self._left[known] -= 1
        strictly = self.expected.in_order and not (self.expected.shares and self.lost)
        if strictly and self._batches[place : place + 1] != [known]:
            wanted = ", ".join(map(_short, self._batches[place : place + 1])) or "the end"
            self.complaints.append(f"at place {place} came batch {_short(indices)}, not {wanted}")
        if (self.expected.corrupt | self.expected.poison).intersection(indices):
            self.complaints.append(f"batch {_short(indices)} came, with a sample that fails")

    def _recognized(self, indices: tuple[int, ...]) -> tuple[int, ...]:
        """With -1 where one sample stands in for another of its batch."""
        if self.expected.on_error != "skip" or indices in self._left:
            return indices
        for batch in self._left:
            pairs = list(zip(batch, indices, strict=False))
            if len(batch) == len(indices) and all(wanted in (-1, index) for wanted, index in pairs):
                stand_ins = {index for wanted, index in pairs if wanted == -1}
                return batch if stand_ins <= set(batch) else indices
        return indices

    def _fails(self, failing: list[tuple[int, ...]]) -> bool:
        """Whether a batch that has to fail so has its turn; where there is no order, any one of them."""
        place = self._place
        here = self._batches[place] if self.expected.in_order and place < len(self._batches) else None
        batch = here if here is not None else next(iter(failing), None)
        if batch not in failing:
            return False
        for others in (self._corrupt, self._poison):  # a batch with both fails once
            if batch in others:
                others.remove(batch)
        self._left[batch] -= 1
        self._place += 1
        return True

    def _check(self, row: Row) -> None:
        index, data, drawn = row[Field.INDEX], row[Field.DATA], row[Field.DRAWN]
        self.tally.samples += 1
        self.tally.nbytes += len(data)
        self.tally.store_faults[row[Field.PROCESS]] = row[Field.FAULTS]
        if not zlib.crc32(data) == row[Field.CHECKSUM] == self.expected.checksums.get(index):
            self.complaints.append(f"the bytes of sample {index} are not what they should be")
        # Without a seed, a batch that is given up takes what it would have drawn with it.
        known = self.expected.drawn if self.expected.seeded or not self.lost else None
        if known is not None and known[index] != drawn:
            self.complaints.append(f"sample {index} drew {drawn}, undisturbed it is {known[index]}")


class Kept:
    """Batches that a consumer keeps: their bytes must be the same whenever somebody looks."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: list[tuple[Any, list[tuple[int, int]]]] = []
        self.nbytes = 0

    def keep(self, batch: Any, rows: Sequence[Row]) -> None:
        """Keep it, and let the oldest go when there are too many."""
        self._kept.append((rows, [(row[Field.INDEX], zlib.crc32(row[Field.DATA])) for row in rows]))
        del self._kept[: max(0, len(self._kept) - self._most)]

    def drop(self) -> None:
        """Let go of all of them."""
        self._kept.clear()

    def changed(self) -> list[str]:
        """Look again at all of them."""
        complaints = []
        for rows, checksums in self._kept:
            for row, (index, checksum) in zip(rows, checksums, strict=True):
                self.nbytes += len(row[Field.DATA])
                if zlib.crc32(row[Field.DATA]) != checksum:
                    complaints.append(f"the bytes of sample {index} have changed while its batch was kept")
        return complaints


def losses(lost: int, kills: int, restarts: int, *, early: bool = False, blamed_after: int = 2) -> str | None:
    """Whether so many batches may have failed with `WorkerLost`, after so many workers were killed.

    None if they may: the loader had used up its restarts (then the epoch may end `early`, too), or one batch's worker
    was killed so often that the batch itself was to blame, as far as anybody could know.
    """
    if not lost or kills > restarts or (kills > blamed_after and not early):
        return None
    return f"{lost} batches failed with WorkerLost, with {kills} workers killed and {restarts} restarts allowed"


def _short(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:4]))
    return f"[{shown}, … {len(indices)} in all]" if len(indices) > 4 else f"[{shown}]"
