"""One pass over the data: how it begins, from the front or from a state."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

from aloader.channel.marks import Resume, is_stateful
from aloader.channel.record import Record, Share
from aloader.channel.roles import Who
from aloader.sampling.late import LateSource
from aloader.sampling.passes import samplers_in
from aloader.sampling.progress import Progress
from aloader.sampling.remaining import RemainingSource
from aloader.settings import Settings, begin_sampling, key_of, source_for, workers_of
from aloader.state.writing import numbers_beyond, resume_of


@dataclass(slots=True, eq=False)
class Pass:
    """One pass over the data: how it begins, and how far it has come."""

    epoch: int
    seed: int  #: torch's base seed of its workers
    key: int | None  #: what the samples' own generators are made from
    source: Any
    record: Record
    first_slot: int = 0
    resumed: bool = False  #: it goes on where another left off: workers that are kept know nothing of that
    resumes: list[Resume] = field(default_factory=list)  #: of each worker, where `resumed`


def fresh(loader: Settings, epoch: int, kept: Who | None, before: Record | None) -> Pass:
    """A pass from the front. `kept` are the workers that are kept, if any: they have their seed. `before` is the record
    of the pass before this one.

    Torch asks its sampler for an iterator twice where it starts workers; and where it has none, what a sampler draws at
    random is drawn with the first batch.
    """
    tell_own(loader, epoch)
    indices, seed = begin_sampling(loader) if kept is None else (None, kept.base_seed)
    if loader.num_workers > 0:
        indices = loader._passes.begin(loader._index_sampler)
    count = kept.num_workers if kept is not None else max(1, workers_of(loader))
    make = partial(source_for, loader, indices)
    source = make() if _draws_ahead(loader) else LateSource(make)
    record = _record(loader, Progress(), count, [])
    if before is not None and len(before.shares) == len(record.shares):
        _carry(before, record, in_workers=kept is not None, here=not loader.num_workers)
    return Pass(epoch, seed, key_of(loader, seed, epoch), source, record)


def _carry(before: Record, record: Record, *, in_workers: bool, here: bool) -> None:
    """Datasets that live on take their state along: in workers that are kept, or in this process."""
    if in_workers or (here and before.now is None):
        record.shares = [share.successor() for share in before.shares]
    elif here:
        record.now, record.begun = before.now, False


def resumed(loader: Settings, state: dict[str, Any]) -> Pass:
    """A pass that goes on from a state. Nothing is drawn from anybody's generators."""
    epoch, sampler, seed = state["epoch"], state["sampler"], state["base_seed"]
    tell_own(loader, epoch)
    source = source_for(loader, None if sampler else loader._passes.begin(loader._index_sampler), sampler or None)
    beyond = numbers_beyond(state)
    if beyond and not loader.is_iterable:
        source = RemainingSource(source, beyond)
    if not _draws_ahead(loader):
        source = LateSource(partial(_same, source))
    low = state["batches"] if loader.is_iterable else source.first
    resumes = [resume_of(worker) for worker in state.get("workers", ())]
    count = max(1, workers_of(loader))
    if len(resumes) != count:
        resumes = []  # of a dataset with indices, which says less than its order does
    record = _record(loader, Progress(low, beyond), count, resumes)
    if seed is None:
        _, seed = begin_sampling(loader)  # it follows from the loader's own
    turn = state.get("next_worker", low) % count
    return Pass(epoch, seed, key_of(loader, seed, epoch), source, record, turn, resumed=True, resumes=resumes)


def _draws_ahead(loader: Settings) -> bool:
    return loader.num_workers > 0 or loader.is_async


def _same(source: Any) -> Any:
    return source


def _record(loader: Settings, progress: Progress, count: int, resumes: list[Resume]) -> Record:
    """What is noted of a pass: by worker, where it matters which of them had what."""
    if not loader.is_iterable and not is_stateful(loader.dataset):
        return Record(progress)
    shares = [Share(resumes[slot] if resumes else None) for slot in range(count)]
    return Record(progress, shares, numbered=loader.is_iterable)


def tell_own(loader: Settings, epoch: int) -> None:
    """Samplers of the loader's own making follow its epochs by themselves."""
    for sampler in samplers_in(loader.sampler, loader.batch_sampler):
        if getattr(sampler, "automatic", False):
            sampler.set_epoch(epoch)


def is_by_epoch(loader: Settings) -> bool:
    """Whether the order depends on an epoch's number that somebody sets."""
    return any(hasattr(sampler, "set_epoch") for sampler in samplers_in(loader.sampler, loader.batch_sampler))
