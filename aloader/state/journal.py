"""What a loader remembers of its passes: the latest one, the number of the next, and how that begins where this has
been said already: by a state that was loaded, or one that was taken between two epochs.
"""

from __future__ import annotations

import copy
from typing import Any

from aloader.channel.roles import Who
from aloader.sampling.passes import tell_epoch
from aloader.settings import Settings, key_of
from aloader.state.fit import check, fingerprint
from aloader.state.passing import Pass, fresh, from_the_front, is_by_epoch, resumed
from aloader.state.writing import points, worker_state, written


class Journal:
    """See the top of this file."""

    def __init__(self) -> None:
        self.next_epoch = 0
        self.current: Pass | None = None
        self._fixed: Pass | None = None  # the next pass, which a state has been taken of
        self._loaded: dict[str, Any] | None = None  # the state that the next pass begins with
        self._left: tuple[Pass, int] | None = None  # the pass behind which an epoch was set, and how far it was

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to, as far as is known."""
        if self._loaded is not None:
            return int(self._loaded["epoch"])
        one = self._under_way or self._fixed
        return self.next_epoch if one is None else one.epoch

    @property
    def _under_way(self) -> Pass | None:
        """The latest pass, unless it has come to its end, or another epoch was set and it was not gone on with."""
        one = self.current
        if one is None or one.record.ended or self._left == (one, one.record.progress.low):
            return None
        return one

    @property
    def is_loaded(self) -> bool:
        """Whether the next pass goes on from a state, of which workers that are kept know nothing."""
        return self._loaded is not None

    def begin(self, loader: Settings, kept: Who | None) -> Pass:
        """The next pass. `kept` are the workers that are kept for it, if any."""
        fixed, self._fixed = self._fixed, None
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            one = resumed(loader, loaded)
            self.next_epoch = one.epoch + 1
        else:
            one = fixed or self._fresh(loader, kept)
        self.current = one
        return one

    def _fresh(self, loader: Settings, kept: Who | None, *, fix: bool = False) -> Pass:
        self.next_epoch += 1
        return fresh(loader, self.next_epoch - 1, kept, self.current, fix=fix)

    def set_epoch(self, loader: Settings, epoch: int) -> None:
        """The next pass is this epoch. Raises ValueError where a state says otherwise."""
        loaded, fixed = self._loaded, self._fixed
        if loaded is not None and epoch != loaded["epoch"] and (loaded["batches"] or "beyond" in loaded):
            raise ValueError(
                f"the state that was loaded is in epoch {loaded['epoch']}, after {loaded['batches']} batches, and "
                f"set_epoch({epoch}) asks for another one: begin with loader.epoch, or drop the state by "
                "load_state_dict({})"
            )
        self.next_epoch = epoch
        self._left = None if self.current is None else (self.current, self.current.record.progress.low)
        tell_epoch(epoch, loader.sampler, loader.batch_sampler)
        by_epoch = is_by_epoch(loader)
        if loaded is not None:
            loaded["epoch"] = epoch
            if by_epoch and not loaded["batches"]:
                loaded["sampler"] = {}  # it begins by the epoch that it has just been told
        if fixed is not None:
            fixed.epoch, self.next_epoch = epoch, epoch + 1
            fixed.key = key_of(loader, fixed.seed, epoch)
            if by_epoch:
                fixed.source = from_the_front(loader, loader._passes.begin(loader._index_sampler))

    def state(self, loader: Settings, kept: Who | None) -> dict[str, Any]:
        """The state behind the last batch that the user was given; before an epoch's first one, that epoch's."""
        if self._loaded is not None:
            return copy.deepcopy(self._loaded)
        one = self._under_way or self._fixed
        if one is None:
            one = self._fixed = self._fresh(loader, kept, fix=True)
        seeds = (None, one.seed) if loader.seed is None else (loader.seed, None)
        state = written(one.record, epoch=one.epoch, seeds=seeds, source=one.source, data=self._data(loader, one))
        workers = points(one.record)
        if loader.is_iterable or any(point.mark is not None for point in workers):
            state["workers"] = [worker_state(slot, point) for slot, point in enumerate(workers)]
            last = one.record.last_slot
            state["next_worker"] = one.first_slot if last is None else (last + 1) % len(workers)
        return state

    def _data(self, loader: Settings, one: Pass) -> dict[str, Any]:
        """What the pass is of; looked at once."""
        if one.data is None:
            one.data = fingerprint(loader)
        return dict(one.data)

    def load(self, loader: Settings, state: dict[str, Any], *, strict: bool) -> None:
        """Let the next pass go on from a state; {}: from the front. Raises ValueError for one that does not fit, and
        says what differs."""
        if not isinstance(state, dict):
            raise TypeError(f"a state is a dict, as state_dict() gives it, but got {type(state).__name__}")
        if state:
            check(loader, state, strict=strict)
        self._fixed = None
        self._loaded = copy.deepcopy(state) or None
