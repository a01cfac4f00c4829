"""One pass over the data: how it begins, from the front or from a state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any

from aloader.channel.marks import Mark, Resume, is_stateful
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
    data: dict[str, Any] | None = None  #: what it is of (`state.fit`), once somebody has asked
    resumes: list[Resume] = field(default_factory=list)  #: where each worker goes on, if not at the beginning


def fresh(loader: Settings, epoch: int, kept: Who | None, before: Pass | None = None, *, fix: bool = False) -> Pass:
    """A pass from the front. `kept` are the workers that are kept, if any: they have their seed. `before` is the pass
    before it: what datasets that live on, in kept workers or in this process, take along from that. `fix`: draw now
    what has to be drawn at random, before such a dataset is asked, whose state may be that of the same generator.

    Torch asks its sampler for an iterator twice where it starts workers; and where it has none, what a sampler draws at
    random is drawn with the first batch.
    """
    tell_own(loader, epoch)
    indices, seed = begin_sampling(loader) if kept is None else (None, kept.base_seed)
    if loader.num_workers > 0:
        indices = loader._passes.begin(loader._index_sampler)
    count = kept.num_workers if kept is not None else max(1, workers_of(loader))
    lives_on = before is not None and (kept is not None or loader.num_workers == 0)
    source = from_the_front(loader, indices)
    if fix:
        source.state(source.first)
    carried = before.record.carries() if before is not None and lives_on else []
    record = _record(loader, Progress(), count, carried=carried)
    return Pass(epoch, seed, key_of(loader, seed, epoch), source, record)


def from_the_front(loader: Settings, indices: Any) -> Any:
    """What a pass is drawn from; `indices` is a fresh iterator of the sampler's."""
    make = partial(source_for, loader, indices)
    if any(getattr(sampler, "automatic", False) for sampler in samplers_in(loader.sampler, loader.batch_sampler)):
        source = make()
        source.state(source.first)  # of this epoch, whichever the sampler is told before the first batch is drawn
        make = partial(_same, source)
    return make() if _draws_ahead(loader) else LateSource(make)


def resumed(loader: Settings, state: dict[str, Any]) -> Pass:
    """A pass that goes on from a state. Nothing is drawn from anybody's generators."""
    epoch, sampler, seed = state["epoch"], state["sampler"], state["base_seed"]
    tell_own(loader, epoch)
    source = source_for(loader, loader._passes.begin(loader._index_sampler), sampler or None)
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
    return Pass(epoch, seed, key_of(loader, seed, epoch), source, record, turn, resumes=resumes)


def _draws_ahead(loader: Settings) -> bool:
    return loader.num_workers > 0 or loader.is_async


def _same(source: Any) -> Any:
    return source


def _record(
    loader: Settings,
    progress: Progress,
    count: int,
    resumes: Sequence[Resume] = (),
    carried: Sequence[Mark | bytes | None] = (),
) -> Record:
    """What is noted of a pass: by worker, where it matters which of them had what."""
    if not loader.is_iterable and not is_stateful(loader.dataset):
        return Record(progress)
    of_each = zip_longest(range(count), resumes[:count], carried[:count])
    return Record(progress, [Share(resume, before) for _, resume, before in of_each], numbered=loader.is_iterable)


def tell_own(loader: Settings, epoch: int) -> None:
    """Samplers of the loader's own making follow its epochs by themselves."""
    for sampler in samplers_in(loader.sampler, loader.batch_sampler):
        if getattr(sampler, "automatic", False):
            sampler.set_epoch(epoch)


def is_by_epoch(loader: Settings) -> bool:
    """Whether the order depends on an epoch's number that somebody sets."""
    return any(hasattr(sampler, "set_epoch") for sampler in samplers_in(loader.sampler, loader.batch_sampler))
