"""What becomes of samples that fail: `on_error`, in one place for every way in which samples are fetched.

Whoever fetches a ticket under a policy has its `Losses`, and gives it every error of a sample's (`fell`, or
`fell_async` where functions of the user's may be awaited); what that returns stands in the sample's place: `BAD`, or
what the user's function has given. When everything has been awaited, `settled` makes the batch's samples of it. Without
a policy there are no `Losses`, and nobody asks.

Of the samples of a batch, those that fill others' places are chosen by position alone: whatever is fetched when, by
whom, and after which restart, the batch is the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from aloader import options
from aloader.channel.blame import blame, shortly
from aloader.channel.faults import brief, pack_fault, unpack_fault
from aloader.channel.messages import LeftOut, Ticket
from aloader.errors import SampleError, SampleTimeout
from aloader.worker.generators import Own, Seeding, driven


class Failed(Exception):  # noqa: N818
    """A sample failed: its position in the ticket, or -1 where one call fetched them all. The cause is the user's."""

    def __init__(self, position: int, cause: BaseException) -> None:
        super().__init__(position)
        self.position = position
        self.cause = cause


def blamed(position: int, error: BaseException) -> BaseException:
    """A sample's error with its position. Our own cancellation passes; one that the user's code raised is its error."""
    if isinstance(error, Failed | GeneratorExit):
        return error
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return error
    return Failed(position, error)


def located(error: BaseException, ticket: Ticket, worker: int) -> BaseException:
    """An error that knows whose it is, if it is one that wants to."""
    if isinstance(error, SampleTimeout) and error.batch < 0:
        error.batch, error.worker = ticket.seq, worker
    return error


class AllLost(Exception):  # noqa: N818
    """Nothing is left of a ticket's samples, and no batch comes in its place."""

    def __init__(self, losses: Losses, mark: bytes | None) -> None:
        super().__init__()
        self.losses = losses
        self.mark = mark


class _Bad:
    """See `BAD`."""

    def __repr__(self) -> str:
        return "BAD"


#: Stands in the place of a sample that failed, until the batch is settled.
BAD: Final = _Bad()


class Policy(NamedTuple):
    """What becomes of samples that fail, in a worker's place. `word` is "raise", "skip", "drop" or "call": then
    `function` is called. What that returns may be awaitable where somebody `awaits` it later."""

    word: str = "raise"
    function: Callable[[SampleError], Any] | None = None
    worker: int = -1
    awaits: bool = False

    def losses(self, ticket: Ticket, batched: bool, iterable: bool, seeding: Seeding | None) -> Losses | None:
        """Of a ticket; None where any error is the ticket's, and nothing is to be looked after."""
        if self.word == "raise" and not ticket.alone and not ticket.without:
            return None
        return Losses(self, ticket, batched, iterable, seeding)


class Losses:
    """The samples of one ticket that have failed, by position. See the top of this file."""

    def __init__(
        self, policy: Policy, ticket: Ticket, batched: bool, iterable: bool = False, seeding: Seeding | None = None
    ) -> None:
        self.policy = policy
        self.batched = batched
        self.iterable = iterable
        self.alone = ticket.alone
        self.without = dict(ticket.without)
        self.lost: dict[int, BaseException] = {}
        self.forgives = policy.word != "raise"
        self._ticket = ticket
        self._seeding = seeding
        self.indices: Sequence[Any] = () if iterable else _listed(ticket.indices) if batched else [ticket.indices]

    @property
    def apart(self) -> bool:
        """Whether each sample is to be fetched by itself."""
        return self.alone or bool(self.without)

    def again(self) -> Losses:
        """The same for samples that the user has had, and that are read once more: nobody is called."""
        policy = self.policy if self.policy.word != "call" else self.policy._replace(word="drop", function=None)
        return Losses(policy, self._ticket, self.batched, self.iterable, self._seeding)

    # -- what failed -----------------------------------------------------------------------------------------------

    def check(self, position: int) -> None:
        """Before a sample is fetched. Raises `Failed` for one that must not be: it ends workers."""
        if position in self.without:
            raise Failed(position, unpack_fault(self.without[position]))

    def fell(self, position: int, error: BaseException) -> Any:
        """A sample has failed: what stands in its place. Raises `Failed` where that is the batch's failure."""
        asked = self._noted(position, error)
        if asked is None:
            return BAD
        try:
            if self._seeding is not None:
                self._seeding.begin(self._seeding.name(position))
            given = self._called(asked)()
            if inspect.isawaitable(given) and not self.policy.awaits:
                if inspect.iscoroutine(given):
                    given.close()
                raise TypeError(
                    f"on_error={shortly(self.policy.function)} returned an awaitable, and nobody awaits anything here: "
                    "the dataset is not async. Let the function return a sample"
                )
        except BaseException as raised:
            raise Failed(position, _raised_during(raised, error)) from None
        return BAD if given is None else given

    async def fell_async(
        self,
        position: int,
        error: BaseException,
        call: Callable[[Callable[[], Any], Own | None], Awaitable[Any]] | None = None,
    ) -> Any:
        """The same where the function may be a coroutine function. `call` makes its call with the sample's generators,
        where that is not done at once."""
        asked = self._noted(position, error)
        if asked is None:
            return BAD
        own = None if self._seeding is None else self._seeding.own(self._seeding.name(position))
        try:
            given = await (_at_once if call is None else call)(self._called(asked), own)
            if inspect.isawaitable(given):
                given = await (given if own is None else driven(own, _waited(given)))
        except BaseException as raised:
            task = asyncio.current_task()
            if isinstance(raised, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # our own doing
            raise Failed(position, _raised_during(raised, error)) from None
        return BAD if given is None else given

    def _noted(self, position: int, error: BaseException) -> SampleError | None:
        """Note it. The error that the user's function is asked with, if there is one."""
        if not self.forgives or position < 0 or position in self.lost or not isinstance(error, Exception):
            raise Failed(position, error) from None
        self.lost[position] = located(error, self._ticket, self.policy.worker)
        if self.policy.word != "call":
            return None
        asked = self._error(f"{self._where(position)} failed: {brief(error)}", position)
        asked.__cause__ = error
        return asked

    def _called(self, asked: SampleError) -> Callable[[], Any]:
        assert self.policy.function is not None
        return partial(self.policy.function, asked)

    # -- what becomes of the batch ---------------------------------------------------------------------------------

    def settled(self, samples: Any, mark: bytes | None = None) -> Any:
        """The samples that the batch is made of. Raises `AllLost`, and `SampleError` where nothing is left to fill the
        places with. (What a `__getitems__` has made that is no list or tuple is taken as it is.)"""
        if not self.forgives or (self.batched and type(samples) is not list and type(samples) is not tuple):
            return samples
        all_of_them = samples if self.batched else [samples]
        bad = [at for at, sample in enumerate(all_of_them) if sample is BAD or (sample is None and self._none(at))]
        if not bad:
            return samples
        if self.policy.word == "drop":
            missing = set(bad)
            left = [sample for at, sample in enumerate(all_of_them) if at not in missing]
            if not left:
                raise AllLost(self, mark)
        else:
            if len(bad) == len(all_of_them):
                raise self._nothing_left()
            left = refilled(all_of_them, bad)
        return type(samples)(left) if self.batched else left[0]

    def _none(self, position: int) -> bool:
        """Whether None in a sample's place is none. It may be a sample only where a function decides what is one."""
        if self.policy.word == "call":
            return position in self.lost
        self.lost.setdefault(position, self._error("the dataset returned None", position))
        return True

    def _nothing_left(self) -> SampleError:
        first, batch = min(self.lost), self._ticket.seq
        what = f"{self._where(first)} failed, the only one of its batch"
        if len(self.lost) > 1:
            which = "" if self.iterable else f" (samples {shortly(list(self.indices))})"
            what = f"all {len(self.lost)} samples of batch {batch} failed{which}; the first"
        error = self._error(
            f"{what}: {brief(self.lost[first])}. Nothing is left to refill the batch with: a larger batch_size has "
            'more to choose from, and on_error="drop" leaves such a batch out',
            first,
        )
        error.__cause__ = self.lost[first]
        return error

    def _where(self, position: int) -> str:
        if self.iterable:
            return f"the sample at position {position} of batch {self._ticket.seq}"
        return f"sample {shortly(self.indices[position])} of batch {self._ticket.seq}"

    def index(self, position: int) -> Any:
        """What a sample is known by."""
        return position if self.iterable else self.indices[position]

    def _error(self, message: str, position: int) -> SampleError:
        return SampleError(message, index=self.index(position), batch=self._ticket.seq, worker=self.policy.worker)

    # -- what is said of it ----------------------------------------------------------------------------------------

    def left_out(self) -> tuple[LeftOut, ...]:
        """What has failed, for this process: the errors as they are, with their samples named."""
        for position, error in self.lost.items():
            note = self._blame(position)
            if note not in getattr(error, "__notes__", ()):
                with contextlib.suppress(Exception):  # a frozen dataclass takes none
                    error.add_note(note)
        lost, self.lost = self.lost, {}  # tracebacks know frames that know this: as a cycle, they would stay a while
        return tuple(LeftOut(position, lost[position]) for position in sorted(lost))

    def packed(self, worker: str) -> tuple[LeftOut, ...]:
        """The same for another process. The first in full, and others for as long as a message stays small."""
        packed: list[LeftOut] = []
        room = options.BODY_BYTES
        for position in sorted(self.lost):
            error = self.lost[position]
            if room <= 0:
                error = self._error(brief(error), position)
            fault = pack_fault(error, worker, self._blame(position))
            room -= len(fault)
            packed.append(LeftOut(position, fault))
        self.lost = {}
        return tuple(packed)

    def _blame(self, position: int) -> str:
        return blame(self._ticket._replace(indices=self._named()), position, self.batched, self.iterable)

    def _named(self) -> Any:
        return self._ticket.indices if self.iterable or not self.batched else self.indices


def refilled(samples: Sequence[Any], bad: Sequence[int]) -> list[Any]:
    """These samples, with good ones in the bad places: beginning with the one after the first bad place, each in turn,
    so that none comes a third time before each has come twice. Some must be good."""
    missing = set(bad)
    good = [at for at in range(len(samples)) if at not in missing]
    first = next((turn for turn, at in enumerate(good) if at > bad[0]), 0)
    filled = list(samples)
    for turn, at in enumerate(bad, first):
        filled[at] = samples[good[turn % len(good)]]
    return filled


def _listed(indices: Any) -> Sequence[Any]:
    """The indices of a ticket, which may be read again. (Torch takes any iterable: a set, an iterator.)"""
    readable = hasattr(type(indices), "__getitem__") and hasattr(type(indices), "__len__")
    return indices if readable and not isinstance(indices, dict) else list(indices)


def _raised_during(raised: BaseException, error: BaseException) -> BaseException:
    """What the user's function has raised, with the sample's error as what it was raised during: not one of ours."""
    one = raised
    while one.__context__ is not None and one.__context__ is not error and not isinstance(one.__context__, Failed):
        one = one.__context__
    if one is not error and one.__context__ is not error:
        with contextlib.suppress(Exception):  # a frozen dataclass
            one.__context__ = error
    return raised


async def _at_once(get: Callable[[], Any], own: Own | None) -> Any:
    with contextlib.nullcontext() if own is None else own:
        return get()


async def _waited(given: Awaitable[Any]) -> Any:
    return await given
