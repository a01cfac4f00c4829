"""Who may have a process when a pool is shared: so many at once, in the order in which they were asked for. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Sitter(Protocol):
    """A crew, as far as its seats go."""

    @property
    def idle(self) -> bool: ...
    def launch_now(self, slot: int, generation: int) -> None: ...


class _Asked(NamedTuple):
    crew: Sitter
    slot: int
    generation: int


class Seats:
    """See the top of this file. `count` is None where there are always enough."""

    def __init__(self, count: int | None) -> None:
        self.count = count
        self.taken = 0
        self._waiting: deque[_Asked] = deque()

    def take(self, crew: Sitter, slot: int, generation: int) -> bool:
        """Whether a process may be started now; otherwise `launch_now` will be called, when its turn has come."""
        if self.count is None or (self.taken < self.count and not self._waiting):
            self.taken += 1
            return True
        asked = _Asked(crew, slot, generation)
        if asked not in self._waiting:
            self._waiting.append(asked)
        return False

    def give_back(self) -> None:
        """A process has gone."""
        self.taken -= 1
        free = 0 if self.count is None else self.count - self.taken
        for asked in [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]:
            self._seat(asked)

    def insist(self, crew: Sitter, seated: Sequence[Sitter]) -> None:
        """Its consumer waits for a slot that has no process. If nobody who has one uses it, nobody ever would give
        it back: one more is started than there are seats."""
        if all(one.idle for one in seated):
            asked = next((a for a in self._waiting if a.crew is crew), None)
            if asked is not None:
                self._waiting.remove(asked)
                self._seat(asked)

    def waits(self, crew: Sitter) -> bool:
        """Whether a slot of this crew waits for a process."""
        return any(asked.crew is crew for asked in self._waiting)

    def forget(self, crew: Sitter) -> None:
        """Its crew has ended."""
        self._waiting = deque(asked for asked in self._waiting if asked.crew is not crew)

    def _seat(self, asked: _Asked) -> None:
        self.taken += 1
        try:
            asked.crew.launch_now(asked.slot, asked.generation)
        except OSError:  # no descriptors, no memory: when the next process has gone, perhaps
            self.taken -= 1
            self._waiting.appendleft(asked)
