"""A loader that is taken apart and made again does the same, with every argument that it has and those to come."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler
from torch.utils.data import DataLoader as TorchDataLoader

from aloader import DataLoader, WorkerPool
from aloader.integrations.parts import SAMPLING, arguments_of, sampling_of, with_samples_of
from tests.loader.samples import AsyncNumbers, Numbers, as_list


def named(value: object) -> str:
    """The name of a parameter, without addresses: the same in every process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


PARAMETERS = [name for name in inspect.signature(DataLoader.__init__).parameters if name != "self"]


class Stream(IterableDataset):
    def __iter__(self) -> Any:
        return iter(range(10))


class WithMore(DataLoader[Any]):
    """A subclass with an argument of its own, which it keeps."""

    def __init__(self, dataset: Any, *arguments: Any, flavour: str, **more: Any) -> None:
        super().__init__(dataset, *arguments, **more)
        self.flavour = flavour


class Forgetful(DataLoader[Any]):
    def __init__(self, dataset: Any, flavour: str, **more: Any) -> None:
        super().__init__(dataset, **more)


class OnlyADataset(DataLoader[Any]):
    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset, batch_size=2)


def again(loader: Any) -> Any:
    return type(loader)(**arguments_of(loader))


def test_every_argument_is_an_attribute():
    """What frameworks read: the signature, and `vars()` or attributes. `shuffle` lives on as the sampler."""
    loader = DataLoader(Numbers(), num_workers=1)
    for name in PARAMETERS:
        assert name == "shuffle" or hasattr(loader, name), name
        assert name in ("shuffle", "multiprocessing_context") or name in vars(loader), name


def test_every_argument_comes_back():
    """Each is given another value than its default: an argument that is new must be added here, or it fails."""
    given: dict[str, Any] = {
        "num_workers": 1,
        "collate_fn": as_list,
        "pin_memory": True,
        "timeout": 5,
        "worker_init_fn": print,
        "multiprocessing_context": "fork",
        "generator": torch.Generator(),
        "prefetch_factor": 3,
        "persistent_workers": True,
        "pin_memory_device": "cuda",
        "in_order": False,
        "concurrency": 7,
        "memory_limit": "1GiB",
        "worker_setup": print,
        "seed": 7,
        "distributed": (1, 3),
        "on_error": "skip",
        "max_errors": 0.1,
        "sample_timeout": 3.5,
        "max_worker_restarts": 5,
        "max_batches_per_worker": 9,
        "device": "cpu",
        "device_prefetch": 3,
        "device_transform": str,
    }
    assert set(PARAMETERS) - set(SAMPLING) - {"pool"} <= set(given)  # which excludes a context, and has a test below
    made = again(DataLoader(Numbers(), **given))
    assert made.multiprocessing_context.get_start_method() == "fork"
    for name in set(given) - {"multiprocessing_context"}:
        assert getattr(made, name) == given[name], name


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": 4, "shuffle": True},
        {"batch_size": 4, "sampler": [3, 1, 2]},
        {"batch_sampler": [[1, 2], [3]]},
        {"batch_sampler": BatchSampler(SequentialSampler(range(10)), 3, False)},
        {"batch_size": None},
        {"batch_size": None, "sampler": [3, 1, 2]},
    ],
    ids=named,
)
@pytest.mark.parametrize("kind", [DataLoader, TorchDataLoader])
def test_the_samples_are_the_same(arguments, kind):
    loader = kind(list(range(10)), collate_fn=str, **arguments)
    made = again(loader)
    assert type(made) is kind
    assert (made.batch_size, made.drop_last) == (loader.batch_size, loader.drop_last)
    if arguments.get("shuffle"):
        assert made.sampler is loader.sampler
        torch.manual_seed(3)
        expected = list(loader)
        torch.manual_seed(3)
        assert list(made) == expected
    else:
        assert list(made) == list(loader)
        assert len(list(made)) > 0


@pytest.mark.parametrize("more", [{"seed": 1}, {"distributed": (1, 3)}, {"seed": 1, "distributed": (1, 3)}], ids=named)
def test_a_sampler_of_the_loaders_own_goes_along_and_follows_the_new_ones_epochs(more):
    loader = DataLoader(list(range(10)), batch_size=2, shuffle=True, collate_fn=str, **more)
    made = again(loader)
    assert made.sampler is loader.sampler
    assert [list(made), list(made)] == [list(loader), list(loader)]


def test_a_stream_has_neither_sampler_nor_batch_sampler():
    loader = TorchDataLoader(Stream(), batch_size=4, drop_last=True)
    assert sampling_of(loader) == {"dataset": loader.dataset, "batch_size": 4, "drop_last": True}
    assert [len(batch) for batch in again(loader)] == [4, 4]


@pytest.mark.parametrize("dataset", [Numbers(), AsyncNumbers()], ids=["map", "async"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_prefetch_factor_that_nobody_gave_stays_so(dataset, workers):
    """Loaders show torch's 2 with workers. Given to an async dataset, it would be a fraction of what it needs."""
    loader = DataLoader(dataset, num_workers=workers)
    assert loader.prefetch_factor == (2 if workers else None)
    made = DataLoader(dataset, num_workers=workers, prefetch_factor=loader.prefetch_factor)
    assert made.explicit_prefetch is None
    assert made.prefetch_factor == loader.prefetch_factor
    assert again(loader).explicit_prefetch is None
    if workers:
        assert again(DataLoader(dataset, num_workers=workers, prefetch_factor=2)).explicit_prefetch == 2


@pytest.mark.parametrize("workers", [0, 1])
def test_a_share_of_a_pool_stays_one(workers):
    """Without `num_workers`: the loader shows those of the whole pool, which nobody has asked for."""
    with WorkerPool(2) as pool:
        loader = DataLoader(Numbers(), pool=pool, num_workers=workers)
        made = again(loader)
        assert made.pool is pool
        assert made.num_workers == (workers or 2)
        assert made._elastic is (workers == 0)


def test_what_an_async_dataset_may_have_without_workers_comes_back():
    loader = DataLoader(AsyncNumbers(), prefetch_factor=3, concurrency=5, timeout=9)
    made = again(loader)
    assert (made.explicit_prefetch, made.concurrency, made.timeout, made.num_workers) == (3, 5, 9, 0)


def test_other_samples_replace_all_that_said_which_they_were():
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True, concurrency=2, num_workers=1)
    made = DataLoader(**with_samples_of({"dataset": Numbers(6), "batch_sampler": [[5], [4]]}, arguments_of(loader)))
    assert made.batch_size is None
    assert not isinstance(made.sampler, RandomSampler)
    assert (list(made._index_sampler), made.concurrency) == ([[5], [4]], 2)


def test_a_subclass_is_made_again_with_its_own_arguments():
    loader = WithMore(Numbers(), 4, flavour="sour", num_workers=1, concurrency=3)
    made = again(loader)
    assert type(made) is WithMore
    assert (made.flavour, made.batch_size, made.num_workers, made.concurrency) == ("sour", 4, 1, 3)


@pytest.mark.parametrize(
    ("loader", "text"),
    [
        (Forgetful(Numbers(), "sour"), "Set self.flavour in its __init__"),
        (OnlyADataset(Numbers()), "does not take batch_size, drop_last, sampler. Let its __init__ take"),
    ],
)
def test_a_subclass_that_cannot_be_made_again_is_told_why(loader, text):
    with pytest.raises(TypeError, match=text):
        arguments_of(loader)
