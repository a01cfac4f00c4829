"""What of an epoch the user has been given: by ticket, by worker, and what the dataset said of itself behind it.

Written by whoever hands batches out, in the step that does it, and read when somebody asks for a loader's state;
nothing is computed before that. Tickets count here by their number in the epoch, which goes on where an earlier program
left off; of an iterable dataset also by their number within their worker's share.
"""

from __future__ import annotations

from collections.abc import Callable

from aloader.channel.marks import Mark, Resume, unpack_mark
from aloader.sampling.progress import Progress


class Share:
    """One worker's tickets, numbered as it gets them, and the newest mark that says nothing of what was not given.
    `carried`: what its dataset, which lives on, said behind the pass before."""

    def __init__(self, resume: Resume | None = None, carried: Mark | bytes | None = None) -> None:
        resume = resume or Resume(None)
        self._carried = carried
        self.progress = Progress(resume.low, resume.beyond)
        self.end: bytes | None = None  # what the dataset said when there was nothing left
        self._mark: Mark | bytes | None = resume.mark
        self._marked = resume.reads_from  # tickets that it covers
        self._assigned = 0
        self._marks: dict[int, bytes] = {}  # behind later tickets, with others before them that have not been given

    def assigned(self) -> int:
        """The number of the ticket that its worker is given now."""
        self._assigned += 1
        return self.progress.number_of(self._assigned - 1)

    def gave(self, number: int, mark: bytes | None) -> None:
        """The user has this one."""
        self.progress.gave(number)
        low = self.progress.low
        if mark is not None:
            self._marks[number] = mark
        for marked in sorted(self._marks):
            if marked < low:
                self._mark, self._marked = self._marks.pop(marked), marked + 1

    def noted(self, mark: bytes | None) -> None:
        """The user has one more, and its number says nothing: of a dataset with indices."""
        if mark is not None:
            self._mark = mark

    def resume(self) -> Resume:
        """Where another worker would go on. Raises what the dataset raised when it was asked."""
        mark = _unpacked(self._mark)
        before = _unpacked(self._carried) if mark is None else None
        if before is not None:
            mark = before.carried()
        return Resume(mark, self._marked, self.progress.low, tuple(sorted(self.progress.beyond)))

    def copy(self) -> Share:
        """The same for whoever counts otherwise; before anything is given."""
        try:
            return Share(self.resume())
        except Exception:  # what the dataset raised when it was asked: whoever asks for a state is told
            return Share()

    @property
    def carries(self) -> Mark | bytes | None:
        """What a dataset that lives on takes along into the next pass."""
        said = self.end if self.end is not None else self._mark
        return said if said is not None else self._carried


def _unpacked(mark: Mark | bytes | None) -> Mark | None:
    return unpack_mark(mark) if isinstance(mark, bytes) else mark


class Record:
    """See the top of this file. `shares` are the workers', where it matters which had what."""

    def __init__(
        self, progress: Progress | None = None, shares: list[Share] | None = None, *, numbered: bool = False
    ) -> None:
        self.progress = progress or Progress()
        self.shares = shares or []
        self.first = self.progress.low  # the number of the first ticket of this program's
        self.ended = False
        self.last_slot: int | None = None
        self.now: Callable[[], bytes | None] | None = None  # asks the dataset itself, where nobody reads ahead
        self._numbered = numbered  # within shares
        self._numbers: dict[int, tuple[int, int]] = {}  # slot, and number in its share

    def arrivals(self) -> Record | None:
        """A second one, of what has arrived from workers, whoever has had it: where others would replace them. None
        where nobody says where he is."""
        if not self.shares:
            return None
        return Record(shares=[share.copy() for share in self.shares], numbered=self._numbered)

    def number_of(self, seq: int) -> int:
        """A ticket's place in the epoch; of an iterable dataset, those count along that came to nothing."""
        return seq if self._numbered else self.progress.number_of(seq - self.first)

    def assigned(self, seq: int, slot: int) -> None:
        """A worker is given a ticket."""
        if self._numbered and seq not in self._numbers:
            self._numbers[seq] = slot, self.shares[slot].assigned()

    def gave(self, seq: int, slot: int | None = None, mark: bytes | None = None) -> None:
        """The user has this batch."""
        self.progress.gave(self.progress.low if self._numbered else self.number_of(seq))
        if not self.shares or slot is None:
            return
        self.last_slot = slot
        if self._numbered:
            slot, number = self._numbers.pop(seq, (slot, self.shares[slot].progress.low))
            self.shares[slot].gave(number, mark)
        else:
            self.shares[slot].noted(mark)

    def failed(self, seq: int) -> None:
        """The user has an error in its place."""
        if not self._numbered:
            self.progress.failed(self.number_of(seq))
        elif seq in self._numbers:
            slot, number = self._numbers.pop(seq)
            self.shares[slot].progress.failed(number)

    def dry(self, slot: int, mark: bytes | None) -> None:
        """A worker has nothing left, and this is what its dataset says."""
        if self.shares and mark is not None:
            self.shares[slot].end = mark

    def points(self) -> list[Resume]:
        """Where each worker would go on. Raises what their datasets raised when they were asked."""
        return [share.resume() for share in self.shares]

    def carries(self) -> list[Mark | bytes | None]:
        """What datasets that live on take along into the next pass."""
        return [share.carries for share in self.shares] if self.now is None else [self.now()]
