"""Checks of a loader's arguments beyond torch's own, which run first: an error names the argument and the remedy."""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import IterDataPipe, MapDataPipe, Sampler, SequentialSampler

from aloader import ranks
from aloader.channel.marks import is_stateful
from aloader.device.accelerators import is_accelerator
from aloader.pool.pool import NO_WORKERS, WorkerPool
from aloader.ranks import Ranks
from aloader.sampling import DistributedSampler, ShuffledSampler
from aloader.sampling.passes import samplers_in
from aloader.worker.kinds import is_async, is_iterable


class Unasked(int):
    """The number that a loader shows where none was given: torch's `prefetch_factor`, the `num_workers` of a pool.
    Whoever makes the loader again from its attributes, as frameworks do, does not ask for it thereby."""


def asked(prefetch_factor: int | None) -> int | None:
    """The `prefetch_factor` that somebody wants, if anybody does."""
    return None if isinstance(prefetch_factor, Unasked) else prefetch_factor


def check_num_workers(num_workers: Any) -> None:
    """Before torch compares it."""
    try:
        count = operator.index(num_workers)
    except TypeError:
        raise TypeError(f"num_workers option should be an integer, but got num_workers={num_workers!r}") from None
    if count > 0 and not WorkerPool.available():
        raise RuntimeError(NO_WORKERS)


def check_pool(pool: Any, multiprocessing_context: Any) -> None:
    """A shared pool is one, and says itself how its processes start."""
    if pool is None:
        return
    if not isinstance(pool, WorkerPool):
        raise TypeError(f"pool option should be an aloader.WorkerPool, but got pool={pool!r}")
    if multiprocessing_context is not None:
        raise ValueError(
            "multiprocessing_context option and pool option exclude each other: "
            "give it to the pool, WorkerPool(n, multiprocessing_context=...)"
        )


def check_worker_setup(worker_setup: Any) -> None:
    """Before anything is made of it."""
    if worker_setup is not None and not callable(worker_setup):
        raise TypeError(
            f"worker_setup option should be a function without arguments, but got worker_setup={worker_setup!r}"
        )


def check_seed(seed: Any) -> None:
    """A number that everything random follows from."""
    if seed is None:
        return
    if isinstance(seed, bool) or not hasattr(type(seed), "__index__"):
        raise TypeError(f"seed option should be an integer, but got seed={seed!r}")
    if not 0 <= operator.index(seed) < 1 << 64:
        raise ValueError(f"seed option should be from 0 to 2**64 - 1, but got seed={seed!r}")


def ranks_of(distributed: Any) -> Ranks:
    """This process's rank: as it was given, or as torch.distributed or the environment say."""
    if isinstance(distributed, bool):
        return ranks.current()
    if isinstance(distributed, tuple) and len(distributed) == 2:
        try:
            return ranks.checked(*distributed)
        except ValueError as error:
            raise ValueError(f"distributed option: {error}") from None
    raise TypeError(f"distributed option should be a bool or (rank, world_size), but got distributed={distributed!r}")


def check_distributed(distributed: Any, sampler: Any, batch_sampler: Any) -> None:
    """One says who gets which samples: the loader by rank, or the user's own sampler."""
    if distributed is False:
        return
    ranks_of(distributed)
    if any(getattr(one, "automatic", False) for one in samplers_in(sampler, batch_sampler)):
        return  # a loader's own: somebody makes that loader again from its parts
    if sampler is not None or batch_sampler is not None:
        raise ValueError(
            "distributed option is mutually exclusive with sampler and batch_sampler: leave distributed out, and let "
            "the sampler give each rank its share (torch.utils.data.DistributedSampler, or a framework's own, does), "
            "or leave the sampler out, and the loader has one that does"
        )


def own_sampler(dataset: Any, shuffle: Any, seed: int | None, distributed: Any) -> Sampler[int] | None:
    """The sampler that a loader with `seed=` or `distributed=` makes for itself; None: torch's will do.

    It follows the loader's epochs by itself.
    """
    if distributed is False and (seed is None or not shuffle):
        return None
    rank, world_size = ranks_of(distributed) if distributed is not False else Ranks(0, 1)
    sampler: ShuffledSampler | DistributedSampler
    if shuffle and seed is not None:
        sampler = ShuffledSampler(dataset, seed=operator.index(seed), rank=rank, world_size=world_size)
    else:
        sampler = DistributedSampler(dataset, world_size, rank, shuffle=bool(shuffle))
    sampler.automatic = True
    return sampler


#: What `on_error` may say, beside a function.
ON_ERROR: Final = ("raise", "skip", "drop")


def check_faults(on_error: Any, max_errors: Any, sample_timeout: Any, restarts: Any, batches: Any) -> None:
    """What is done when something breaks."""
    if on_error not in ON_ERROR and not callable(on_error):
        raise ValueError(
            'on_error option should be "raise", "skip", "drop" or a function that is given the SampleError and returns '
            f"a sample, but got on_error={on_error!r}"
        )
    if max_errors is not None:
        _check_max_errors(on_error, max_errors)
    if sample_timeout is not None and not _is_number(sample_timeout):
        raise TypeError(f"sample_timeout option should be seconds, but got sample_timeout={sample_timeout!r}")
    if sample_timeout is not None and not 0 < sample_timeout < float("inf"):
        raise ValueError(f"sample_timeout option should be positive, but got sample_timeout={sample_timeout!r}")
    _check_count("max_worker_restarts", restarts, 0)
    if batches is not None:
        _check_count("max_batches_per_worker", batches, 1)


def _check_max_errors(on_error: Any, max_errors: Any) -> None:
    if on_error == "raise":
        raise ValueError('max_errors option needs on_error="skip", "drop" or a function: "raise" allows for no error')
    if isinstance(max_errors, float):
        if not 0 <= max_errors < 1:
            raise ValueError(
                "max_errors option should be a number of samples (an integer) or a fraction of them (a float from 0 to "
                f"less than 1), but got max_errors={max_errors!r}"
            )
        return
    _check_count("max_errors", max_errors, 0)


def _check_count(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise TypeError(f"{name} option should be an integer, but got {name}={value!r}")
    if operator.index(value) < least:
        kind = "non-negative" if least == 0 else "positive"
        raise ValueError(f"{name} option should be {kind}, but got {name}={value!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_device(device: Any, prefetch: Any, transform: Any, pin_memory: Any) -> None:
    """Where batches are handed out. Initialises nothing: whether there is such a device is seen when it is used."""
    if isinstance(pin_memory, str) and pin_memory != "arena":
        raise ValueError(f'pin_memory option should be True, False or "arena", but got pin_memory={pin_memory!r}')
    _check_count("device_prefetch", prefetch, 1)
    if transform is not None and not callable(transform):
        raise TypeError(
            "device_transform option should be a function that is given a batch and returns one, but got "
            f"device_transform={transform!r}"
        )
    if device is None:
        if transform is not None:
            raise ValueError(
                'device_transform option needs the device option, which says where it runs: device="cuda", or "cpu"'
            )
        return
    if is_accelerator(device):
        return
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise TypeError(
            f'device option should be a device such as "cuda", "cuda:1" or "cpu", but got device={device!r}'
        )
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device option should be a device, but got device={device!r}: {reason}") from None
    if kind == "meta":
        raise ValueError("device option should be a device that has memory, but got device='meta'")
    if kind == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        raise ValueError(
            f"device={device!r} option needs a torch that is built for CUDA, and this one ({torch.__version__}) is "
            'not: install such a build, or give device="cpu"'
        )


def check_dataset(loader: TorchDataLoader[Any]) -> None:
    """Whether the dataset is of a kind that can be loaded."""
    dataset = loader.dataset
    if isinstance(dataset, IterDataPipe | MapDataPipe):
        kind = type(getattr(dataset, "_datapipe", dataset)).__name__  # torch has put a wrapper around it
        raise NotImplementedError(
            f"{kind} is a DataPipe, which only torch.utils.data.DataLoader loads, for old programs' "
            "sake: give the loader a dataset with __getitem__ and __len__, or keep torch's loader for this one"
        )
    if is_iterable(dataset):
        return
    own_order = type(loader.sampler) is not SequentialSampler or loader.batch_size is None
    if not hasattr(type(dataset), "__len__") and not own_order:
        raise TypeError(
            f"object of type {type(dataset).__name__!r} has no len(): give the dataset __len__, "
            "or the loader a sampler or batch_sampler that says which samples there are"
        )


def check_more(loader: TorchDataLoader[Any], light: bool, prefetch_factor: int | None, concurrency: Any) -> None:
    """`light`: an async dataset on the user's own loop."""
    if concurrency is not None and not isinstance(concurrency, int):
        raise TypeError(f"concurrency option should be an integer, but got concurrency={concurrency!r}")
    if concurrency is not None and concurrency < 1:
        raise ValueError(f"concurrency option should be positive, but got concurrency={concurrency!r}")
    if concurrency is not None and loader.num_workers == 0 and not light:
        raise ValueError(
            "concurrency option needs num_workers > 0 or an async dataset: without workers, "
            "samples of an ordinary dataset are fetched one after the other, as by torch"
        )
    if concurrency is not None and is_iterable(loader.dataset) and not is_async(loader.dataset):
        raise ValueError(
            "concurrency option needs a dataset with __getitem__ or an async one: an iterable dataset is read from its "
            "front, one sample after the other"
        )
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(
            "prefetch_factor option should be non-negative"
            if prefetch_factor < 0
            else "prefetch_factor option should be positive: with 0 no worker would ever get a batch to make"
        )
    if loader.timeout > 0 and loader.num_workers == 0 and not light:
        raise ValueError("timeout option needs num_workers > 0: in this process, nothing can be timed out")


def check_lives(loader: TorchDataLoader[Any], light: bool, sample_timeout: Any, batches: Any) -> None:
    """What needs workers that can be replaced. `light`: an async dataset on the user's own loop."""
    dataset = loader.dataset
    if sample_timeout is not None and loader.num_workers == 0 and not light:
        raise ValueError(
            "sample_timeout option needs num_workers > 0 or an async dataset: in this process, a sample that is stuck "
            "cannot be interrupted"
        )
    if batches is not None and is_iterable(dataset) and not is_stateful(dataset):
        raise ValueError(
            f"max_batches_per_worker option needs a dataset with state_dict and load_state_dict where it is iterable: "
            f"a new worker could not go on where another of {type(dataset).__name__} has stopped"
        )
