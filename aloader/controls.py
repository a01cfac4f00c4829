"""What a program says to a loader while it uses it, beside iterating: which epoch comes, what workers shall call, which
sample to fetch once more, which worker to replace."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, cast

from aloader.pool.informed import Informed
from aloader.settings import Settings, key_of
from aloader.worker import calls
from aloader.worker.replay import replay


class Controls:
    """Methods of `DataLoader` (as `Resumable` has those of its state)."""

    if TYPE_CHECKING:
        dataset: Any
        num_workers: int
        _journal: Any
        _runtime: Any

        @property
        def epoch(self) -> int: ...
        def __iter__(self) -> Any: ...
        def __aiter__(self) -> Any: ...

    def with_info(self) -> Informed:
        """For `async for batch, info in …` and `for`: batches with their `BatchInfo`."""
        return Informed(self.__iter__, self.__aiter__)

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next: to the sampler, the batch sampler and those inside it, and to the dataset.

        Whoever of them has a `set_epoch` is told; a dataset's is broadcast to the workers' replicas. Call it before
        each epoch. Raises TypeError for what is no integer.
        """
        try:
            epoch = operator.index(epoch)
        except TypeError:
            raise TypeError(f"epoch should be an integer, but got epoch={epoch!r}") from None
        self._journal.set_epoch(self, epoch)
        if calls.holders(self.dataset, "set_epoch"):
            self.broadcast("set_epoch", epoch)

    def broadcast(self, method: str, *args: Any) -> None:
        """Call a method of the dataset, here and in every worker's replica: `loader.broadcast("set_epoch", 3)`.

        Where the dataset has no such method, those inside torch's wrappers (`Subset`, `ConcatDataset` …) are meant.
        A worker makes the call before the next batch that it begins: call between epochs, or in one for what is not
        begun yet. Workers that are started later make it too. Arguments are pickled.

        Raises AttributeError where there is no such method, TypeError for a coroutine function and for arguments that
        cannot be pickled, and what the method raises here: then no worker is told. What it raises in a worker is the
        error of that worker's next batch.
        """
        calls.check(self.dataset, method)
        call = None if self._runtime is None or self.num_workers == 0 else calls.written(method, args)
        calls.call(self.dataset, method, args)
        if self._runtime is not None and call is not None:
            self._runtime.broadcast(call)

    def replay(self, index: Any) -> Any:
        """Fetch one sample in this process, as its error said: `dataset[index]`, and raise what it raises, as it is.

        So a debugger finds it: `python -m pdb`, `%debug`. A sample of an async dataset is awaited on a loop of its
        own, within the `async with` of a copy of the dataset. The result is not collated.

        With `seed=`, and of an async dataset, the same random numbers are drawn again, those of the latest epoch, and
        this process's generators are as they were afterwards. Else they are what is drawn from.
        """
        latest = self._journal.current
        key = latest.key if latest is not None else key_of(cast("Settings", self), 0, self.epoch)
        return replay(self.dataset, index, key)

    def restart_worker(self, worker: int) -> None:
        """Kill a worker's process, which may be stuck, and let another one go on with its batches.

        `worker` is its number, as `LoaderTimeout.worker` has it. Nothing is lost: what it was working on is made again.
        It counts as one of `max_worker_restarts`. Raises ValueError where no such worker is at work.
        """
        if self._runtime is None or not self._runtime.restart_worker(operator.index(worker)):
            raise ValueError(f"worker should be the number of a worker that is at work, but got worker={worker!r}")
