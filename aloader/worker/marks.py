"""When a dataset is asked for its state. Whoever reads ahead has to ask before the user has come as far: behind each
ticket, as long as that costs next to nothing; else so seldom that it takes a hundredth of the time. Whoever goes on
from an older mark reads the tickets behind it once more.
"""

from __future__ import annotations

import time
from typing import Any

from aloader import options
from aloader.channel.marks import Mark, is_stateful, pack_mark


class Marker:
    """Asks one dataset, and its iterators. `worker` is who it is, in words."""

    def __init__(self, dataset: Any, worker: str = "the main process") -> None:
        self._dataset = dataset if is_stateful(dataset) else None
        self._worker = worker
        self._allowance = options.MARK_GRACE  # seconds
        self._since = time.perf_counter()

    def take(self, iterator: Any = None, position: int = 0, *, ended: bool = False) -> bytes | None:
        """The mark behind the ticket that has just been read; None where there is nothing to ask, or too little time
        has gone by."""
        if self._dataset is None and not is_stateful(iterator):
            return None
        now = time.perf_counter()
        self._allowance = min(options.MARK_GRACE, self._allowance + options.MARK_SHARE * (now - self._since))
        self._since = now
        if self._allowance <= 0 and not ended:
            return None
        packed = self.at_once(iterator, position, ended=ended)
        self._since = time.perf_counter()
        self._allowance -= self._since - now
        return packed

    def at_once(self, iterator: Any = None, position: int = 0, *, ended: bool = False) -> bytes | None:
        """The same, whatever it costs."""
        asked = self._dataset if self._dataset is not iterator else None  # its own iterator is asked as that
        iterator = iterator if is_stateful(iterator) else None
        if asked is None and iterator is None:
            return None
        try:
            dataset = None if asked is None else asked.state_dict()
            state = None if iterator is None else iterator.state_dict()
        except Exception as error:
            return pack_mark(error, self._worker)
        return pack_mark(Mark(dataset, state, position, ended), self._worker)


def tell(dataset: Any, mark: Mark | None) -> None:
    """Give a dataset the state that a mark has of it, if any. Raises what it raises."""
    if mark is not None and mark.dataset is not None:
        load(dataset, mark.dataset)


def load(one: Any, state: Any) -> None:
    """Give somebody their state back. What they raise says what was done."""
    try:
        one.load_state_dict(state)
    except BaseException as error:
        error.add_note(
            f"raised by load_state_dict of {type(one).__name__}, which was given the state of an earlier pass"
        )
        raise
