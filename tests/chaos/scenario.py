"""What happens in one scenario, as a function of its seed: data, arguments, consumer, what is done to the processes.

Pure: no clock, no process, no torch. Whatever is drawn is drawn here, in one order, so that a seed is all that it takes
to do the same again; only when a signal arrives in the life of a process is left to the machine.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

#: Kinds of datasets: `plain` has `__getitem__`; `together` `__getitems__`; `threads` is plain, with concurrency=;
#: `async` and `store` are awaited, the latter reads from a store that misbehaves; `stream` is iterable, with a state.
KINDS: Final = ("plain", "together", "threads", "async", "store", "stream")

#: What a consumer does with batches.
HABITS: Final = ("fast", "slow", "bursty", "keeps", "cancels", "breaks", "throws")

#: What becomes of samples that fail.
ON_ERROR: Final = ("raise", "skip", "drop")

#: Bytes and seconds that one scenario may take, so that hundreds fit into minutes.
MOST_BYTES: Final = 24_000_000
MOST_STORED: Final = 2_000_000
MOST_WORK: Final = 0.5

#: More than any scenario kills: with so many restarts nothing may be lost.
PLENTY: Final = 1000

#: Processes of the pool that scenarios share: of four workers, one waits until another has ended.
SEATS: Final = 3


@dataclass(frozen=True, slots=True)
class Strike:
    """What is done to the loader's processes at one moment.

    `what` is "kill" or "stop" (then `pause` seconds later "continue") for workers, or "template", which is killed.
    `when` is "start": as soon as there is a process of that epoch; "batch": `delay` seconds after `batch` batches were
    taken; "idle": between this epoch and the next. `victims` workers, chosen by `pick`.
    """

    what: str
    when: str
    epoch: int
    batch: int
    delay: float
    victims: int
    pause: float
    pick: int


@dataclass(frozen=True, slots=True)
class ParentEnd:
    """The program itself gets a signal: `delay` seconds after `batch` batches (-1: after it has begun to iterate)."""

    signal: int
    batch: int
    delay: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """See the top of this file. `arguments` are the loader's that need no object made for them."""

    seed: int
    kind: str
    samples: int
    batch_size: int
    nbytes: int
    ragged: bool  # samples of different sizes, and lists of them for batches
    work: float  # seconds that every `every`th sample takes
    every: int
    order: str  # "sequential", "listed": a sampler that is a list, "shuffled": torch's or, with a seed, the loader's
    workers: int
    epochs: int
    seats: int  # of a pool that many scenarios share; 0: a pool, and so a template, of its own
    awaits: bool  # `async for`
    uvloop: bool
    habit: str
    at: int  # the batch at which a consumer breaks or throws
    pauses: tuple[float, ...]  # what it does between batches, in turn
    arguments: dict[str, Any]
    corrupt: tuple[int, ...]  # indices of samples that raise
    poison: tuple[int, ...]  # of samples that kill their worker
    strikes: tuple[Strike, ...]
    parent: ParentEnd | None

    @property
    def persistent(self) -> bool:
        """Whether workers live from epoch to epoch."""
        return bool(self.arguments.get("persistent_workers"))

    @property
    def on_device(self) -> bool:
        """Whether batches are handed out on a device (a simulated one), in a program that waits for it each time."""
        return Random(f"device {self.seed}").random() < 0.3

    @property
    def cut_off(self) -> float | None:
        """Seconds after which an awaiting consumer is cancelled for good: perhaps before there are any workers."""
        random = Random(f"cut off {self.seed}")
        if not self.awaits or self.parent is not None or random.random() > 0.15:
            return None
        return random.uniform(0, random.choice((0, 0.005, 0.05, 0.3, 2)))

    @property
    def in_order(self) -> bool:
        """Whether batches come in their order."""
        return bool(self.arguments.get("in_order", True))

    @property
    def on_error(self) -> str:
        """What becomes of samples that fail."""
        return str(self.arguments.get("on_error", "raise"))

    @property
    def loader_seed(self) -> int | None:
        """What is given as `seed=`."""
        seed: int | None = self.arguments.get("seed")
        return seed

    def size_of(self, index: int) -> int:
        """Bytes of a sample."""
        return 8 + (index * 7919) % self.nbytes if self.ragged else self.nbytes

    def undisturbed(self) -> Scenario:
        """The same, with nothing done to it, and samples that cost nothing: for what would have been drawn.

        With a seed nothing depends on workers: it does without them, where each index is a sample's number.
        """
        alone = self.loader_seed is not None and self.kind != "stream"
        dropped = _DISTURBING | (_OF_WORKERS if alone else frozenset())
        return replace(
            self,
            kind=_SIMPLER.get(self.kind, self.kind),
            nbytes=8,
            ragged=False,
            work=0.0,
            workers=0 if alone else self.workers,
            habit="fast",
            pauses=(0.0,),
            arguments={name: value for name, value in self.arguments.items() if name not in dropped},
            poison=(),
            strikes=(),
            parent=None,
        )


_SIMPLER: Final = {"store": "async"}
_DISTURBING: Final = frozenset({"memory_limit", "max_batches_per_worker", "timeout"})
_OF_WORKERS: Final = frozenset({"persistent_workers", "concurrency", "prefetch_factor"})


def scenario(seed: int) -> Scenario:
    """The scenario of a seed: one whose batches can be told ahead."""
    drawn = _drawn(seed)
    arguments = drawn.arguments
    if drawn.kind == "stream" and drawn.habit in ("breaks", "throws"):
        arguments["persistent_workers"] = False  # how far a kept one had read by then, its dataset goes on from
    # Without workers, what a failed batch did not draw is missing from the generator of the next epoch's order. And
    # torch's sampler draws from it once more at its end: whether it has come there depends on who looked how far ahead.
    untold = (drawn.corrupt and not drawn.workers) or drawn.habit == "breaks"
    unordered = drawn.order == "shuffled" and untold and arguments["seed"] is None
    alone = drawn.cut_off is not None and seed % 2 > 0  # with a template that starts meanwhile
    return replace(drawn, order="listed" if unordered else drawn.order, seats=0 if alone else drawn.seats)


def _drawn(seed: int) -> Scenario:
    random = Random(seed)
    kind = random.choice(KINDS)
    awaits, habit = random.random() < 0.6, random.choice(HABITS)
    workers = random.choice((0, 1, 2, 2, 3, 4)) if kind != "threads" else random.choice((1, 2, 3))
    parent = _parent(random) if random.random() < 0.08 and workers else None
    batch_size, batches, nbytes = _sizes(random, MOST_STORED if kind == "store" else MOST_BYTES)
    samples = batches * batch_size - (random.randrange(batch_size) if random.random() < 0.5 else 0)
    epochs = random.choice((1, 1, 2, 3))
    arguments = _arguments(random, kind, workers, batch_size)
    corrupt = _some(random, samples, 3) if kind != "stream" and random.random() < 0.25 else ()
    poison = _some(random, samples, 1) if workers and kind != "stream" and random.random() < 0.1 and not parent else ()
    if poison:
        arguments["max_worker_restarts"] = PLENTY
    if (corrupt or poison) and batch_size >= 5:  # so that something is left of each batch, also of the last
        samples = batches * batch_size
        arguments["on_error"] = random.choice(ON_ERROR)
    habit = "fast" if habit == "cancels" and not awaits else habit
    struck, persistent = bool(workers) and parent is None, bool(arguments["persistent_workers"])
    every, work = max(1, batch_size // 2), _work(random, batches, workers, epochs)
    return Scenario(
        seed=seed,
        kind=kind,
        samples=samples,
        batch_size=batch_size,
        nbytes=nbytes,
        ragged=random.random() < 0.25,
        work=work,
        every=every,
        order="sequential" if kind == "stream" else random.choice(("sequential", "listed", "shuffled")),
        workers=workers,
        epochs=epochs,
        seats=0 if parent or random.random() < 0.1 else SEATS,
        awaits=awaits,
        uvloop=random.random() < 0.3,
        habit=habit,
        at=random.randint(1, max(1, batches - 1)),
        pauses=_pauses(random, habit, batches * epochs),
        arguments=arguments,
        corrupt=corrupt,
        poison=poison,
        strikes=_strikes(random, epochs, batches, persistent) if struck else (),
        parent=parent,
    )


def _sizes(random: Random, most: int) -> tuple[int, int, int]:
    """Samples of a batch, batches of an epoch, bytes of a sample: together not more than `most` bytes."""
    batch_size = random.choice((1, 1, 2, 3, 5, 8, 16, 33, 64))
    batches = random.choice((random.randint(1, 12), random.randint(10, 60)))
    nbytes = random.choice((8, 100, 1000, 20_000, 70_000, 300_000, 1_000_000))
    while batch_size * batches * nbytes > most:
        if batches > 8:
            batches //= 2
        elif batch_size > 2:
            batch_size //= 2
        else:
            nbytes //= 2
    return batch_size, batches, nbytes


def _work(random: Random, batches: int, workers: int, epochs: int) -> float:
    """Seconds of every sample that takes any: about two of a batch do."""
    seconds = random.choice((0.0, 0.001, 0.003, 0.008))
    return min(seconds, MOST_WORK * max(1, workers) / (2 * batches * epochs))


def _arguments(random: Random, kind: str, workers: int, batch_size: int) -> dict[str, Any]:
    chosen: dict[str, Any] = {
        "drop_last": random.random() < 0.2,
        "in_order": random.random() < 0.7,
        "seed": random.randrange(1 << 32) if random.random() < 0.5 else None,
        "memory_limit": random.choice((None, None, "1KB", "200KB", "3MB", "64MB")),
        "persistent_workers": bool(workers) and random.random() < 0.5,
        "prefetch_factor": random.choice((None, None, 1, 2, 5)) if workers else None,
        "timeout": random.choice((0, 15)) if workers else 0,
        "max_batches_per_worker": random.choice((None, None, 3, 10, 30)) if workers else None,
        "max_worker_restarts": random.choice((PLENTY, PLENTY, PLENTY, 3, 0)),
    }
    if kind == "threads" or (kind in ("async", "store") and random.random() < 0.6):
        chosen["concurrency"] = random.choice((2, 8, 3 * batch_size))
    return chosen


def _some(random: Random, samples: int, most: int) -> tuple[int, ...]:
    return tuple(sorted(random.sample(range(samples), min(samples, random.randint(1, most)))))


def _pauses(random: Random, habit: str, batches: int) -> tuple[float, ...]:
    """Seconds between batches. When it cancels: how long it waits at most for one."""
    if habit == "cancels":
        return (*(random.choice((0.0, 0.0003, 0.002)) for _ in range(4)), 0.05)
    most = 0.6 / batches
    if habit == "bursty":
        quiet = random.randint(3, 10)
        return (*(0.0 for _ in range(quiet)), min(0.06, most * (quiet + 1)))
    return (min(0.008, most),) if habit == "slow" else (0.0,)


def _strikes(random: Random, epochs: int, batches: int, persistent: bool) -> tuple[Strike, ...]:
    count = random.choice((0, 1, 1, 2, 2, 3, 4, 6))
    strikes = [_strike(random, epochs, batches, persistent) for _ in range(count)]
    order = {"start": 0, "batch": 1, "idle": 2}
    return tuple(sorted(strikes, key=lambda strike: (strike.epoch, order[strike.when], strike.batch)))


def _strike(random: Random, epochs: int, batches: int, persistent: bool) -> Strike:
    what = random.choices(("kill", "stop", "template"), (14, 5, 1))[0]
    when = random.choices(("batch", "start", "idle"), (7, 2, 2 if persistent and epochs > 1 else 0))[0]
    return Strike(
        what=what,
        when=when,
        epoch=random.randrange(epochs - 1 if when == "idle" else epochs),
        batch=random.randrange(max(1, batches - 1)),
        delay=random.choice((0.0, 0.0, random.uniform(0, 0.005), random.uniform(0, 0.03))),
        victims=random.choice((1, 1, 1, 2, 4)),
        pause=random.choice((0.002, 0.02, 0.1)),
        pick=random.randrange(1 << 16),
    )


def _parent(random: Random) -> ParentEnd:
    number = random.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT))
    return ParentEnd(int(number), random.choice((-1, 0, 1, 3)), random.choice((0.0, 0.01, random.uniform(0, 0.5))))
