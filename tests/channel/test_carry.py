"""A dataset reaches its workers by what it is: memory beside the stream, files by name, code by value."""

from __future__ import annotations

import multiprocessing
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from aloader import options
from aloader.channel import carry as module
from aloader.channel.carry import Carried, carry, restore


class Dataset:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Job(NamedTuple):
    dataset: Any
    collate_fn: Any


def arrive(carried: Carried) -> list[memoryview]:
    """Writable memory of a worker's own, as a privately mapped file is."""
    return [memoryview(bytearray(view)) for view in carried.buffers]


def carried(obj: Any, **how: Any) -> Any:
    packed = carry(obj, **how)
    return restore(packed.body, arrive(packed))


def test_everything_of_a_page_and_more_lies_beside_the_stream() -> None:
    data = torch.rand(5000)
    dataset = Dataset(data=data, train=data[:4000], labels=np.arange(9999), mean=torch.ones(3), names=["a"] * 10)
    packed = carry(dataset)
    assert [len(view) for view in packed.buffers] == [data.nbytes, dataset.labels.nbytes]
    assert len(packed.body) < 2000
    memory = arrive(packed)
    back = restore(packed.body, memory)
    assert torch.equal(back.data, data)
    assert torch.equal(back.train, dataset.train)
    assert back.data.data_ptr() == back.train.data_ptr() == np.frombuffer(memory[0], np.uint8).ctypes.data
    assert np.array_equal(back.labels, dataset.labels)
    back.labels[0] = 7
    assert memory[1][0] == 7
    assert packed.captured == []


def test_what_functions_capture_by_value() -> None:
    offset = torch.arange(3)
    back = carried(Job([1], lambda sample: sample + offset))
    assert torch.equal(back.collate_fn(1), torch.arange(3) + 1)


@pytest.mark.parametrize(
    "make",
    [
        multiprocessing.Lock,
        multiprocessing.Event,
        multiprocessing.SimpleQueue,
        lambda: multiprocessing.Value("i", 3),
        lambda: multiprocessing.RawArray("i", [1, 2]),
    ],
    ids=["Lock", "Event", "SimpleQueue", "Value", "RawArray"],
)
def test_what_only_inheritance_can_share_is_refused_with_its_place_and_the_remedy(make: Any) -> None:
    dataset = Dataset(shared={"counts": [make()]})
    where = r"^dataset\.shared\['counts'\]\[0\]: multiprocessing\..*multiprocessing_context=\"fork\""
    with pytest.raises(RuntimeError, match=where):
        carry(Job(dataset, None))
    with pytest.raises(RuntimeError, match=where):
        carry(dataset)


def test_a_connection_is_refused_though_it_would_be_pickled_as_a_number() -> None:
    ends = multiprocessing.Pipe()
    try:
        with pytest.raises(RuntimeError, match=r"^dataset\.pipe: multiprocessing\.connection\.Connection: "):
            carry(Dataset(pipe=ends[0]))
    finally:
        for end in ends:
            end.close()


def test_what_cannot_be_pickled_at_all_is_named() -> None:
    with pytest.raises(TypeError, match=r"^collate_fn, captured 'lock': _thread\.lock cannot be pickled"):
        lock = threading.Lock()
        carry(Job([1], lambda batch: (batch, lock)))
    with pytest.raises(TypeError, match=r"^b\.lock: _thread\.lock cannot be pickled"):
        carry([1, Dataset(lock=threading.Lock())], name=("a", "b"))


class TestMappedFiles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        np.arange(10_000, dtype=np.int64).tofile(tmp_path / "tokens")
        return tmp_path / "tokens"

    def test_are_opened_again_at_the_same_place(self, path: Path) -> None:
        whole = np.memmap(path, np.int64, "r")
        dataset = Dataset(
            whole=whole,
            part=whole[5000:6000],
            plain=np.asarray(whole[1000:].reshape(9, 1000).T),
            offset=np.memmap(path, np.int32, "r+", offset=8 * 1001)[3:],
        )
        packed = carry(dataset)
        assert packed.buffers == []
        assert len(packed.body) < 4000
        back = restore(packed.body, [])
        for name, array in vars(dataset).items():
            again = getattr(back, name)
            assert type(again) is type(array)
            assert np.array_equal(again, array)
            assert again.flags.writeable is array.flags.writeable
            assert again.strides == array.strides
        back.offset[0] = -1
        assert dataset.offset[0] == -1

    def test_go_by_value_when_only_their_memory_counts(self, path: Path) -> None:
        private = np.memmap(path, np.int64, "c")
        private[0] = 77
        replaced = np.memmap(path, np.int64, "r")
        strided = replaced[::2]
        path.rename(path.with_name("old"))
        np.zeros(10_000, dtype=np.int64).tofile(path)
        assert carried(Dataset(array=private)).array[0] == 77
        assert np.array_equal(carried(Dataset(array=replaced)).array, replaced)
        assert np.array_equal(carried(Dataset(array=strided)).array, strided)


class TestSharedTensors:
    def test_go_as_the_hook_says_and_keep_their_layout(self) -> None:
        shared = torch.arange(6000.0).share_memory_()
        kept: list[Any] = []

        def share(storage: torch.UntypedStorage) -> Any:
            kept.append(storage)
            return _storage_of, (len(kept) - 1,)

        _STORAGES[:] = []
        dataset = Dataset(
            one=shared, two=shared.view(60, 100).t()[3:], weight=torch.nn.Parameter(shared), own=torch.ones(2)
        )
        packed = carry(dataset, share=share)
        assert packed.buffers == []
        _STORAGES[:] = kept
        back = restore(packed.body, [])
        assert len(kept) == 1
        assert back.two.stride() == dataset.two.stride()
        back.one.fill_(3)
        assert dataset.one.eq(3).all()
        assert back.two.eq(3).all()
        assert isinstance(back.weight, torch.nn.Parameter)
        assert back.weight.requires_grad
        assert back.weight.data_ptr() == shared.data_ptr()

    def test_go_by_value_without_one(self) -> None:
        shared = torch.arange(6000.0).share_memory_()
        back = carried(Dataset(data=shared))
        assert torch.equal(back.data, shared)
        assert back.data.data_ptr() != shared.data_ptr()


_STORAGES: list[Any] = []


def _storage_of(place: int) -> Any:
    return _STORAGES[place]


SMALL = 3


class TestHeavyCaptures:
    def test_are_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module.options, "CAPTURED_BYTES", 100_000)
        big, table, helper = torch.zeros(30_000), ["x" * 100 + str(i) for i in range(2000)], len

        def transform(sample: Any) -> Any:
            return [big for _ in sample if SMALL and helper(sample)]

        packed = carry(Dataset(transform=transform, names=lambda place: table[place]))
        assert packed.captured == [
            f"big (captured by function {transform.__qualname__!r})",
            "table (captured by function 'TestHeavyCaptures.test_are_named.<locals>.<lambda>')",
        ]

    def test_are_not_looked_for_in_what_is_light_or_the_datasets_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert carry(Dataset(transform=lambda: SMALL)).captured == []
        monkeypatch.setattr(module.options, "CAPTURED_BYTES", 100_000)
        assert carry(Dataset(data=bytes(200_000), transform=lambda: SMALL)).captured == []
        assert options.CAPTURED_BYTES == 100_000


def test_a_function_by_value_keeps_the_name_of_its_file() -> None:
    def outer() -> Any:
        return lambda: None

    inner = carried(outer)()
    assert inner is not outer()
    assert inner.__code__.co_filename == __file__, "tracebacks and debuggers find its lines by it"
