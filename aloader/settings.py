"""A loader's arguments, and what follows from them for one epoch: bounds, source, who the workers are."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any, Protocol

import torch

from aloader import options
from aloader.channel.marks import is_stateful
from aloader.channel.roles import Who
from aloader.channel.tolerance import Tolerance
from aloader.device import choosing, pinning
from aloader.device.accelerators import Accelerator
from aloader.device.moving import Moving
from aloader.device.pages import Pages
from aloader.device.residence import Residence
from aloader.device.stage import Way
from aloader.device.staying import Staying
from aloader.engine import DispatcherConfig
from aloader.pool.notices import LengthWatch
from aloader.pool.pool import WorkerPool
from aloader.ranks import Ranks
from aloader.sampling import keys
from aloader.sampling.passes import Passes
from aloader.sampling.source import SharesSource, is_pure, source_of, tickets_of


class Settings(Protocol):
    """A loader's arguments, as far as running it depends on them. They may be changed between epochs."""

    dataset: Any
    sampler: Any
    batch_sampler: Any
    batch_size: int | None
    drop_last: bool
    num_workers: int
    collate_fn: Callable[[Any], Any]
    pin_memory: Any  # bool, or "arena"
    pin_memory_device: str
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    worker_setup: Callable[[], object] | None
    generator: torch.Generator | None
    persistent_workers: bool
    in_order: bool
    concurrency: int | None
    prefetch_factor: int | None
    pool: WorkerPool | None
    seed: int | None
    distributed: bool | tuple[int, int]
    on_error: str | Callable[[Any], Any]
    max_errors: int | float | None
    sample_timeout: float | None
    max_worker_restarts: int
    max_batches_per_worker: int | None
    device: Any
    device_prefetch: int
    device_transform: Callable[[Any], Any] | None
    explicit_prefetch: int | None
    memory_limit: int | str | None
    memory_bytes: int
    is_async: bool
    is_iterable: bool
    _elastic: bool
    _passes: Passes
    _journal: Any

    @property
    def ranks(self) -> Ranks: ...
    @property
    def closed(self) -> bool: ...
    @property
    def multiprocessing_context(self) -> Any: ...
    @property
    def _auto_collation(self) -> bool: ...
    @property
    def _index_sampler(self) -> Any: ...
    def check_worker_number_rationality(self) -> None: ...


def begin_sampling(loader: Settings) -> tuple[Any, int]:
    """A sampler's iterator and the base seed, drawn in torch's order. Warns as torch does of pinning."""
    if loader.pin_memory:
        pinning.warn(loader.pin_memory_device, stacklevel=5)
    indices = loader._passes.begin(loader._index_sampler)
    if loader.seed is not None:
        return indices, keys.worker_seed(loader.seed)
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=loader.generator).item())
    return indices, seed


def key_of(loader: Settings, base_seed: int, epoch: int) -> int | None:
    """What the samples' own generators are made from in an epoch; None: they draw from the workers', as torch's do."""
    if loader.seed is None and not loader.is_async:
        return None
    return keys.epoch_key(base_seed if loader.seed is None else operator.index(loader.seed), epoch)


def finisher(loader: Settings) -> Callable[[Any], Any] | None:
    """What is done with each batch when the user gets it."""
    length = getattr(loader, "_IterableDataset_len_called", None) if loader.is_iterable else None
    return None if length is None else LengthWatch(loader.dataset, length, loader.num_workers)


def accelerator_of(loader: Settings) -> Accelerator | None:
    """Whom batches are made ready for, if for anybody. Initialises nothing."""
    if loader.device is not None:
        return choosing.accelerator_for(loader.device)
    return choosing.current() if loader.pin_memory else None


def way_of(loader: Settings, residence: Residence | None, seed: int, epoch: int, key: int | None) -> Way | None:
    """What each batch of an epoch goes through before it is given, on whose device. What `device_transform` draws is a
    function of the epoch's key (else torch's base seed `seed`), the rank and the batch's place."""
    accelerator = None if residence is None else residence.accelerator
    if loader.device is not None and accelerator is not None:
        if loader.device_transform is None and choosing.is_everywhere(accelerator):
            return None
        key, rank = keys.epoch_key(seed, epoch) if key is None else key, loader.ranks.rank

        def number_of(place: int) -> int:
            return keys.sample_key(key, (rank, place), "device")

        return Moving(accelerator, loader.device_prefetch, loader.device_transform, number_of, residence)
    if loader.pin_memory == "arena":
        return None if accelerator is None else Staying(accelerator, pinning.in_arena(accelerator), arena=True)
    pin = pinning.pinner(bool(loader.pin_memory))
    return None if pin is None else Staying(accelerator, pin)


def pages_of(loader: Settings, accelerator: Accelerator | None, warn: Callable[[str], None]) -> Pages | None:
    """What page-locks the workers' memory; None where whoever copies does so from memory of torch's."""
    wanted = loader.device is not None or loader.pin_memory == "arena"
    if not wanted or accelerator is None or not accelerator.locks:
        return None
    whole = loader.device is None  # the user copies
    return Pages(accelerator, int(loader.memory_bytes * options.LOCKED_SHARE), warn, whole=whole)


def source_for(loader: Settings, indices: Any, state: dict[str, Any] | None = None) -> Any:
    """What tickets are drawn from: `indices` is a fresh iterator of the sampler's, `state` where it goes on."""
    if loader.is_iterable:
        return SharesSource(loader.batch_size)
    return source_of(loader._index_sampler, indices, state)


def who_of(loader: Settings, seed: int, surroundings: bytes) -> Who:
    slots = max(1, workers_of(loader))  # without processes, one slot that is always filled
    kind = loader.is_iterable, loader.drop_last, *loader.ranks, permits_of(slots)
    faults = on_error_of(loader), loader.sample_timeout or 0.0, max(1, loader.memory_bytes // slots)
    who = slots, seed, share_of(loader), in_threads(loader), loader._auto_collation, surroundings
    return Who(0, *who, *kind, *faults)


def on_error_of(loader: Settings) -> str:
    """What becomes of a sample that fails, in a word; "call": a function of the user's says."""
    return loader.on_error if isinstance(loader.on_error, str) else "call"


def function_on_error(loader: Settings) -> Callable[[Any], Any] | None:
    """The user's function for samples that fail, if there is one."""
    return None if isinstance(loader.on_error, str) else loader.on_error


def tolerance_of(loader: Settings, epoch: int) -> Tolerance | None:
    """What counts the samples that fail in an epoch; None where the first one's error is raised."""
    word, most = on_error_of(loader), loader.max_errors
    if word == "raise":
        return None
    share = loader.batch_size or 1
    if most is None or isinstance(most, float):
        return Tolerance(word, most, None if most is None else _samples(loader), share, epoch)
    return Tolerance(word, operator.index(most), None, share, epoch)


def _samples(loader: Settings) -> int | None:
    """The samples of an epoch, where its sampler knows how many batches it has, and of which size."""
    size = loader.batch_size
    if size is None and loader.batch_sampler is not None:
        size = getattr(loader.batch_sampler, "batch_size", None)
    elif size is None:
        size = 1
    if loader.is_iterable or not isinstance(size, int):
        return None
    try:
        return tickets_of(loader._index_sampler) * size
    except (TypeError, NotImplementedError):
        return None


def workers_of(loader: Settings) -> int:
    """How many workers an epoch has. On a shared pool, where the loader does not say: its share of the seats."""
    if loader.pool is None or not loader._elastic:
        return loader.num_workers
    return max(1, loader.pool.num_workers // max(1, len(loader.pool.loaders)))


def in_threads(loader: Settings) -> bool:
    return not loader.is_async and loader.concurrency is not None


def share_of(loader: Settings) -> int:
    """Samples that one worker may have in flight."""
    workers = workers_of(loader)
    if loader.concurrency is not None:
        return max(1, loader.concurrency // max(1, workers))
    total = options.CONCURRENCY // _local_ranks()
    return options.share_of(total, workers) if workers else max(1, total)


def permits_of(slots: int) -> float:
    """The share of a store's requests that each worker may have in flight: together they are one client of it."""
    return min(1.0, options.PERMITS_SPARE / (slots * _local_ranks()))


def _local_ranks() -> int:
    return max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))


def _explicit_prefetch(loader: Settings) -> int | None:
    """What the user has said of prefetching: to the constructor, or by setting torch's attribute since then."""
    given = loader.explicit_prefetch
    untouched = (None, given or options.PREFETCH_FACTOR)
    return given if loader.prefetch_factor in untouched else loader.prefetch_factor


def bounds_of(loader: Settings, slots: int, first: int = 0, first_slot: int = 0) -> DispatcherConfig:
    """The bounds of an epoch: torch's, unless many samples are fetched at once. `first` is its first ticket's number,
    and `first_slot` whose that is."""
    explicit = _explicit_prefetch(loader)
    credit = explicit or options.PREFETCH_FACTOR
    shares, pure = loader.is_iterable, is_pure(loader._index_sampler)
    narrow, far = credit * slots, 0
    if explicit is None and (loader.is_async or in_threads(loader)):
        least = options.async_credit(share_of(loader), loader.batch_size or 1)
        credit, narrow = least if shares else 2 * least, least * slots
        far = options.FAR * narrow if pure and not shares else 0
    wide = 2 * narrow if shares or pure else narrow
    own_bounds = explicit is not None or loader.memory_limit is not None or loader.is_async
    lean = None if own_bounds else options.LEAN_BYTES
    may_restart = getattr(loader.dataset, "restartable", True) and (not shares or is_stateful(loader.dataset))
    memory = loader.memory_bytes
    if loader.pool is not None and loader.memory_limit is None:
        memory //= max(1, len(loader.pool.loaders))
    return DispatcherConfig(
        slots,
        credit,
        wide,
        narrow,
        memory,
        loader.in_order,
        lean,
        first=first,
        first_slot=first_slot,
        far_window=far,
        max_restarts=loader.max_worker_restarts if may_restart else 0,
        lifetime=(loader.max_batches_per_worker or 0) if workers_of(loader) else 0,
        tolerant=loader.on_error != "raise",
        interchangeable=shares,
    )
