"""Does what a scenario says to the loader's processes, from a thread beside the consumer.

Processes are found by their place in the tree, as anybody outside finds them: the template is a child of the program,
a stage of it that has loaded a dataset is a child of that, and workers are children of the stage.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Self

from .leftovers import Process, descendants
from .scenario import Strike

TEMPLATES, WORKERS = (1, 2), (3,)

#: Seconds after which a strike has missed: there was no such process.
PATIENCE = {"start": 3.0, "batch": 0.2, "idle": 0.2}


@dataclass(slots=True)
class Struck:
    """What an injector has done."""

    kills: int = 0
    templates: int = 0
    stops: int = 0
    missed: int = 0
    killed_in: dict[int, int] = field(default_factory=dict)  # workers that were lost, by epoch
    moments: list[float] = field(default_factory=list)  # of kills
    template_moments: list[float] = field(default_factory=list)


class Injector:
    """`with` runs its thread. The consumer says how far it is: `begins`, `took`, `idle`."""

    def __init__(self, strikes: Iterable[Strike], workers: int, excluded: Iterable[int] = ()) -> None:
        self.struck = Struck()
        self._strikes = list(strikes)
        self._workers = workers
        self._excluded = frozenset(excluded)
        self._said = threading.Condition()
        self._epoch, self._taken, self._over = -1, 0, False
        self._thread = threading.Thread(target=self._run, name="chaos injector")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._said:
            self._over = True
            self._said.notify_all()
        self._thread.join()

    def begins(self, epoch: int) -> None:
        """The consumer is about to iterate."""
        self._say(epoch, 0)

    def took(self, epoch: int, batches: int) -> None:
        """The consumer has taken so many batches of it."""
        self._say(epoch, batches)

    def idle(self, epoch: int) -> None:
        """The epoch is over, and the next has not begun: strikes of this moment happen in the consumer's thread."""
        for strike in self._strikes:
            if strike.when == "idle" and strike.epoch == epoch:
                self._strike(strike)

    def _say(self, epoch: int, taken: int) -> None:
        with self._said:
            self._epoch, self._taken = epoch, taken
            self._said.notify_all()

    def _run(self) -> None:
        for strike in self._strikes:
            if strike.when == "idle":
                continue
            if not self._reached(strike):
                self.struck.missed += 1
                continue
            time.sleep(strike.delay)  # sleep: the moment at which it strikes is what is tested
            self._strike(strike)

    def _reached(self, strike: Strike) -> bool:
        """Wait for its moment. False if the consumer has not come that far."""
        moment = strike.epoch, strike.batch if strike.when == "batch" else 0
        with self._said:
            self._said.wait_for(lambda: self._over or (self._epoch, self._taken) >= moment)
            return (self._epoch, self._taken) >= moment and self._epoch == strike.epoch

    def _strike(self, strike: Strike) -> None:
        whole = strike.what == "template"
        found = self._find(TEMPLATES if whole else WORKERS, PATIENCE[strike.when])
        if not found:
            self.struck.missed += 1
            return
        random = Random(strike.pick)
        victims = random.sample(found, min(len(found), 1 if whole else strike.victims))
        if strike.what == "stop":
            self._stop(victims, strike.pause)
            return
        hit = sum(_signal(victim, signal.SIGKILL) for victim in victims)
        struck = self.struck
        if whole:
            struck.templates += hit
            struck.template_moments.append(time.perf_counter())
        else:
            struck.kills += hit
            struck.moments.append(time.perf_counter())
        # Who is killed between epochs is missed by the next one.
        epoch = strike.epoch + (strike.when == "idle")
        lost = hit * self._workers if whole else hit
        struck.killed_in[epoch] = struck.killed_in.get(epoch, 0) + lost

    def _find(self, depths: tuple[int, ...], patience: float) -> list[Process]:
        deadline = time.monotonic() + patience
        while True:
            found = [one for one in descendants(os.getpid(), self._excluded) if one.depth in depths]
            if found or time.monotonic() > deadline or self._over:
                return found
            time.sleep(0.0005)  # sleep: nobody says when a process has been started

    def _stop(self, victims: list[Process], pause: float) -> None:
        stopped = [victim for victim in victims if _signal(victim, signal.SIGSTOP)]
        time.sleep(pause)  # sleep: how long they are stopped
        for victim in stopped:
            _signal(victim, signal.SIGCONT)
        self.struck.stops += len(stopped)


def _signal(victim: Process, number: int) -> bool:
    try:
        os.kill(victim.pid, number)
    except ProcessLookupError:
        return False
    return True
