"""aloader with Hugging Face accelerate: `prepare(accelerator, loader)`.

`accelerator.prepare(loader)` makes a loader of torch's own out of ours, and wraps it. Here accelerate does all that it
does otherwise (it deals batches out to processes, seeds samplers alike, keeps the state of gradient accumulation, moves
batches to the device), and then what its wrapper iterates is exchanged for an aloader.DataLoader with the same
arguments. Nothing of accelerate is done over again, `async for` apart, which it does not have.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final, Self

from torch.utils.data import BatchSampler, IterableDataset
from torch.utils.data import DataLoader as TorchDataLoader

from aloader.integrations import parts
from aloader.loader import DataLoader
from aloader.worker.kinds import reads_async

try:
    from accelerate import data_loader as _theirs
    from accelerate.utils import send_to_device, synchronize_rng_states
except ImportError as error:
    raise ImportError("this needs Hugging Face accelerate: pip install 'aloader[accelerate]'") from error

__all__ = ["adopt", "prepare", "skip_first_batches"]


def prepare(accelerator: Any, loader: DataLoader[Any], device_placement: bool | None = None) -> Any:
    """What `accelerator.prepare(loader)` gives, with aloader's own workers in it; also for `async for`.

    `accelerator.prepare` lets it through, so that either order is right:
    `loader = prepare(accelerator, loader)`, `model, optimizer, loader = accelerator.prepare(model, optimizer, loader)`.
    With several processes, call it on each. `close()`, `aclose()`, `stats()` and `async with` are the loader's.
    """
    if getattr(loader, "_is_accelerate_prepared", False):
        return accelerator.prepare_data_loader(loader)
    if not isinstance(loader, DataLoader):
        raise TypeError(f"prepare takes an aloader.DataLoader, not {type(loader).__name__}: change the loader's import")
    # Of what accelerate's own loader would do besides sampling it is told nothing: torch refuses some of our arguments.
    sampling = parts.sampling_of(loader)
    if reads_async(loader.dataset):
        sampling["dataset"] = _Seen(loader.dataset)
    plain = TorchDataLoader(**sampling, generator=loader.generator)
    prepared = accelerator.prepare_data_loader(plain, device_placement)
    _exchange(prepared, type(loader), parts.arguments_of(loader))
    prepared._is_accelerate_prepared = True
    return prepared


def adopt(prepared: Any, **arguments: Any) -> Any:
    """Make a loader that accelerate has prepared iterate ours, with the same arguments and those given. In place.

    For frameworks on top of accelerate that make their loader themselves. One that iterates ours already is left alone.
    """
    theirs = getattr(prepared, "base_dataloader", prepared)
    if not isinstance(theirs, DataLoader):
        _exchange(prepared, DataLoader, parts.arguments_of(theirs) | arguments)
    return prepared


def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
    """`accelerate.skip_first_batches`, which makes a loader of torch's own out of a prepared one: for one of ours.

    Any other loader is left to accelerate. Skipped batches are not loaded, except of iterable-style datasets.
    """
    if not isinstance(vars(loader).get("base_dataloader"), DataLoader):
        return _theirs.skip_first_batches(loader, num_batches)
    base, skipping = loader.base_dataloader, _unpickled(type(loader), vars(loader))
    sampling = parts.sampling_of(base)
    if parts.is_iterable(base):
        skipping.skip_batches = num_batches
        return skipping
    if base.batch_sampler is None:
        sampling["sampler"] = _Skipping(base.sampler, num_batches)
    else:
        sampling = {"dataset": base.dataset, "batch_sampler": _Skipping(base.batch_sampler, num_batches)}
    skipping.base_dataloader = type(base)(**parts.with_samples_of(sampling, parts.arguments_of(base)))
    return skipping


def _exchange(prepared: Any, kind: type[DataLoader[Any]], arguments: dict[str, Any]) -> None:
    """Let `prepared` iterate a loader of ours, of the samples that accelerate has chosen for this process."""
    wrapper = _WRAPPERS.get(type(prepared))
    if wrapper is None:
        name = type(prepared).__name__
        raise TypeError(f"accelerate has made a {name}, which aloader cannot be put into: use torch's loader here")
    if prepared.use_stateful_dataloader and not hasattr(kind, "state_dict"):
        raise ValueError("aloader's loader has no state_dict(): do without use_stateful_dataloader=True")
    sampling = parts.sampling_of(prepared.base_dataloader)
    sampling["dataset"] = _as_it_is(sampling["dataset"])
    prepared.base_dataloader = kind(**parts.with_samples_of(sampling, arguments))
    # What it is to Python. Accelerate's class says `__class__` is that of the loader inside, and cannot be set.
    object.__dict__["__class__"].__set__(prepared, wrapper)


class _Skipping(BatchSampler):
    """A batch sampler without its first batches. Whatever else is asked of it is that sampler's: accelerate looks for
    the batch size, the number of processes, and the sampler whose epoch it sets."""

    def __init__(self, batches: Any, count: int) -> None:
        self._batches = batches
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._batches, self._count, None)

    def __len__(self) -> int:
        return max(0, len(self._batches) - self._count)

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":  # while it is being unpickled
            raise AttributeError(name)
        return getattr(self._batches, name)


class _Seen(IterableDataset[Any]):
    """What accelerate is shown of a dataset that is read with `async for`: an iterable one."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Any:
        raise NotImplementedError


class DatasetShard(_theirs.IterableDatasetShard):  # type: ignore[misc]
    """One process's samples of a dataset that is read with `async for`, by the rules of accelerate's own shards."""

    async def __aiter__(self) -> AsyncIterator[Any]:
        whole = self.batch_size if self.split_batches else self.batch_size * self.num_processes
        share = whole // self.num_processes
        mine = slice(self.process_index * share, (self.process_index + 1) * share)
        first: list[Any] = []
        samples: list[Any] = []
        async for sample in self.dataset:
            samples.append(sample)
            if len(samples) == whole:
                for own in samples[mine]:
                    yield own
                first, samples = first or samples, []
        if samples and not self.drop_last:  # filled up from the beginning, so that all processes have as many
            first = first or samples
            while len(samples) < whole:
                samples = samples + first
            for own in samples[mine]:
                yield own


def _as_it_is(dataset: Any) -> Any:
    """The dataset that accelerate has been shown something else of, sharded if accelerate has sharded that."""
    if type(dataset) is _Seen:
        return dataset.dataset
    if type(dataset) is _theirs.IterableDatasetShard:
        inner = _as_it_is(dataset.dataset)
        if reads_async(inner):
            names = ("batch_size", "drop_last", "num_processes", "process_index", "split_batches")
            return DatasetShard(inner, **{name: getattr(dataset, name) for name in names})
    return dataset


class _Ours:
    """What aloader's loader can do beyond torch's, also in accelerate's wrapper, and how that is pickled."""

    base_dataloader: DataLoader[Any]

    async def __aenter__(self) -> Self:
        await self.base_dataloader.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self.base_dataloader.__aexit__(*exc)

    def __enter__(self) -> Self:
        self.base_dataloader.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.base_dataloader.__exit__(*exc)

    def _update_state_dict(self) -> None:
        """Accelerate would ask its loader for a state with each batch, and that fixes what the next epoch draws."""

    def state_dict(self) -> Any:
        """Refused: it would leave a batch out."""
        raise NotImplementedError(
            "accelerate reads one batch ahead, so that a state of a prepared loader would leave that one out: save how "
            "many batches you have had, and go on with aloader.integrations.accelerate.skip_first_batches"
        )

    def set_epoch(self, epoch: int) -> None:
        """As accelerate's; and the dataset's `set_epoch` is called in the workers' replicas, too."""
        above: Any = super()
        above.set_epoch(epoch)
        self.base_dataloader.set_epoch(epoch)

    def __reduce__(self) -> Any:
        return _unpickled, (type(self), vars(self))


class Shard(_Ours, _theirs.DataLoaderShard):  # type: ignore[misc]
    """accelerate's loader of one process's batches, over aloader's."""

    def __aiter__(self) -> Batches:
        return Batches(self)


class Dispatcher(_Ours, _theirs.DataLoaderDispatcher):  # type: ignore[misc]
    """accelerate's loader of the first process, which sends the others their parts, over aloader's."""

    def __aiter__(self) -> Any:
        raise TypeError(
            "with dispatch_batches the processes wait for each other in every batch, which would hold up the event "
            "loop: iterate with `for`, or prepare with DataLoaderConfiguration(dispatch_batches=False)"
        )


_WRAPPERS: Final = {_theirs.DataLoaderShard: Shard, _theirs.DataLoaderDispatcher: Dispatcher}


def _unpickled(kind: Any, state: dict[str, Any]) -> Any:
    """A wrapper as it was, without its constructor, which would make a loader."""
    made = object.__new__(kind)
    vars(made).update(state)
    return made


class Batches:
    """An epoch for `async for`: `DataLoaderShard.__iter__`, step by step, with awaiting.

    It is one batch ahead of what it gives, so that the last one is known for the last. A cancelled `__anext__` has lost
    nothing, and after a sample's error the next batch can be had.
    """

    def __init__(self, shard: Any) -> None:
        self._shard = shard
        self._batches: Any = None
        self._ahead: list[Any] = []  # the batch that comes next, once it has arrived
        self._given = 0
        self._exhausted = False
        self._ended = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if self._batches is None and not self._ended:
            self._begin()
        while self._ahead or await self._arrival():
            batch = await self._next()
            self._given += 1
            if self._given > self._shard.skip_batches:
                return batch
        if self._given and not self._ended:
            self._shard.iteration += 1
        self._end()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the epoch before its time."""
        self._ahead.clear()
        self._exhausted = True
        self._end()
        if self._batches is not None:
            await self._batches.aclose()

    def _begin(self) -> None:
        shard = self._shard
        if shard.rng_types is not None:
            synchronize_rng_states(shard.rng_types, shard.synchronized_generator)
        shard.begin()
        shard.set_epoch(shard.iteration)
        self._batches = aiter(shard.base_dataloader)

    async def _arrival(self) -> bool:
        """Whether there is another batch, which is then ahead."""
        if not self._exhausted:
            try:
                self._ahead.append(await anext(self._batches))
            except StopAsyncIteration:
                self._exhausted = True
        return not self._exhausted

    async def _next(self) -> Any:
        shard, ahead = self._shard, self._ahead
        if shard.device is not None:
            ahead[0] = send_to_device(ahead[0], shard.device, non_blocking=shard._non_blocking)
        shard._update_state_dict()
        if not await self._arrival():
            shard.end_of_dataloader = True
            shard._update_state_dict()
        return ahead.pop(0)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._shard.end()
