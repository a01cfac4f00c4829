"""Datasets of every shape that torch's loader takes. Sample i can be told from every other; importable by workers."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import OrderedDict, UserDict, UserList, defaultdict, namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, get_worker_info, random_split

N = 23


class Made(Dataset):
    """Sample i is what a function of this module makes of i."""

    def __init__(self, how: str, n: int = N) -> None:
        self.how = how
        self.n = n
        self.mark: Any = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: Any) -> Any:
        return SAMPLES[self.how](index)


class Drawing(Made):
    """Samples that draw from every generator."""

    def __init__(self, n: int = N) -> None:
        super().__init__("number", n)

    def __getitem__(self, index: Any) -> Any:
        return index, random.random(), float(np.random.rand()), torch.rand(2)


class Informed(Made):
    """Samples that say what the worker knows of itself, and what its start function has noted."""

    def __init__(self, n: int = N) -> None:
        super().__init__("number", n)

    def __getitem__(self, index: Any) -> Any:
        info = get_worker_info()
        if info is None:
            return index, -1, -1, -1, True, str(self.mark)
        same = info.dataset is self or getattr(info.dataset, "inner", None) is self
        return index, info.id, info.num_workers, info.seed, same, str(getattr(info.dataset, "mark", 0))


class Bulk(Made):
    """Fetches a batch with one call, and says so."""

    def __getitems__(self, indices: list[Any]) -> list[Any]:
        return [(SAMPLES[self.how](index), len(indices)) for index in indices]


class NoBulk(Made):
    """Has the bulk method's name for nothing."""

    __getitems__ = None


class Keyed(Dataset):
    """The samples of another dataset by keys of any type."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, key: Any) -> Any:
        match key:
            case str():
                return self.inner[int(key.removeprefix("key-"))]
            case (index, "tuple"):
                return self.inner[index]
            case list():
                return [self.inner[index] for index in key]
        return self.inner[key]


class Growing(Made):
    """Becomes longer between epochs."""


class FailsAt(Made):
    """Some samples raise."""

    def __init__(self, how: str, at: tuple[int, ...] = (4,), n: int = 12) -> None:
        super().__init__(how, n)
        self.at = at

    def __getitem__(self, index: Any) -> Any:
        if index in self.at:
            ERRORS[self.how](index)
        return index


# -- samples ----------------------------------------------------------------------------------------------------------

Point = namedtuple("Point", ["x", "y"])


@dataclass
class Record:
    x: int
    y: torch.Tensor


class FrozenMapping(Mapping[str, Any]):
    """Cannot be changed; made of a dict."""

    def __init__(self, items: Mapping[str, Any]) -> None:
        self._items = dict(items)

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Any:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class OddMapping(FrozenMapping):
    """Cannot be made of a dict: collated to a plain one."""

    def __init__(self, one: Any, two: Any) -> None:
        super().__init__({"one": one, "two": two})


class FrozenSequence(Sequence[Any]):
    def __init__(self, items: Any) -> None:
        self._items = tuple(items)

    def __getitem__(self, index: Any) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)


class Labelled(UserDict):  # type: ignore[type-arg]
    label = "none"

    @classmethod
    def of(cls, label: str, **items: Any) -> Labelled:
        made = cls(items)
        made.label = label
        return made


class Subtensor(torch.Tensor):
    """A subclass that adds nothing."""


def _default_dict(i: int) -> Any:
    made: defaultdict[str, int] = defaultdict(int)
    made["a"] = i
    return made


SAMPLES: dict[str, Callable[[Any], Any]] = {
    "number": lambda i: i,
    "float": float,
    "bool": lambda i: i % 2 == 0,
    "text": lambda i: f"text {i}",
    "bytes": lambda i: b"%d" % i,
    "tensor": lambda i: torch.full((2, 3), i),
    "scalar tensor": lambda i: torch.tensor(float(i)),
    "empty tensor": lambda i: torch.empty(0, 3),
    "large tensor": lambda i: torch.full((150, 200), float(i)),
    "large pair": lambda i: (torch.full((30_000,), i), torch.full((40_000,), i % 7, dtype=torch.int16)),
    "half": lambda i: torch.full((4,), i, dtype=torch.float16),
    "bfloat": lambda i: torch.full((4,), i, dtype=torch.bfloat16),
    "complex": lambda i: torch.full((2,), complex(i, -i)),
    "conjugate": lambda i: torch.full((2,), complex(i, 1)).conj(),
    "grad": lambda i: torch.full((2,), float(i), requires_grad=True),
    "transposed": lambda i: torch.arange(6).reshape(2, 3).t() + i,
    "channels last": lambda i: (torch.arange(24.0).reshape(2, 3, 4) + i).permute(2, 0, 1),
    "image": lambda i: torch.full((3, 4, 5), i, dtype=torch.uint8).unsqueeze(0).to(memory_format=torch.channels_last),
    "strided": lambda i: torch.arange(12)[::3] + i,
    "expanded": lambda i: torch.tensor([i]).expand(5),
    "subclass": lambda i: torch.full((2,), float(i)).as_subclass(Subtensor),
    "parameter": lambda i: torch.nn.Parameter(torch.full((2,), float(i))),
    "array": lambda i: np.full((2, 3), i),
    "fortran array": lambda i: np.asfortranarray(np.arange(6).reshape(2, 3) + i),
    "strided array": lambda i: np.arange(12)[::3] + i,
    "numpy number": lambda i: np.float32(i),
    "numpy integer": lambda i: np.int16(i),
    "numpy bool": lambda i: np.bool_(i % 2),
    "numpy text": lambda i: np.str_(f"text {i}"),
    "unsigned": lambda i: np.full(3, i, dtype=np.uint16),
    "tuple": lambda i: (i, float(i), f"{i}"),
    "list": lambda i: [i, torch.tensor([i])],
    "nested": lambda i: {"a": [torch.full((2,), i), (i, float(i))], "b": {"c": f"text {i}", "d": b"bytes"}, "e": ()},
    "point": lambda i: Point(i, np.full(2, i)),
    "nested points": lambda i: (Point(f"{i}", (i, i)), [Point(i, None or i)]),
    "frozen mapping": lambda i: FrozenMapping({"x": i, "y": np.float64(i)}),
    "odd mapping": lambda i: OddMapping(i, i),
    "ordered": lambda i: OrderedDict(b=i, a=i + 1),
    "default dict": _default_dict,
    "labelled": lambda i: Labelled.of(f"label {i}", x=i),
    "frozen sequence": lambda i: FrozenSequence([i, i + 1]),
    "user list": lambda i: UserList([i, float(i)]),
    "range": lambda i: range(i, i + 3),
    "odd keys": lambda i: {i: i} if i == 0 else {0: i, i: i},
    "int keys": lambda i: {1: i, (2, 3): i, None: i},
    # what torch's rules refuse
    "ragged": lambda i: torch.zeros(i + 1),
    "shrinking": lambda i: torch.zeros(9 - i),
    "ragged lists": lambda i: [0] * (i + 1),
    "ragged dicts": lambda i: {f"key {i}": i},
    "none": lambda i: None,
    "a set": lambda i: {i},
    "complex number": lambda i: complex(i, i),
    "record": lambda i: Record(i, torch.tensor(i)),
    "object array": lambda i: np.array([i, None], dtype=object),
    "text array": lambda i: np.array([f"{i}"]),
    "date": lambda i: np.datetime64("2020-01-01") + i,
    "dates": lambda i: np.array(["2020-01-01"], dtype="datetime64[D]") + i,
    "sparse": lambda i: torch.eye(3).to_sparse() * i,
    "sparse rows": lambda i: torch.eye(3).to_sparse_csr(),
    "nested tensor": lambda i: torch.nested.nested_tensor([torch.zeros(1), torch.ones(2) * i]),
    "mixed types": lambda i: i if i % 2 else f"{i}",
    "mixed lengths": lambda i: (i,) if i % 2 else (i, i),
    "mixed dtypes": lambda i: torch.tensor([i], dtype=torch.float32 if i % 2 else torch.float64),
    "mixed integers": lambda i: torch.tensor([i], dtype=torch.int64 if i % 2 else torch.int16),
    "integers after floats": lambda i: torch.tensor([i], dtype=torch.int32 if i % 2 else torch.float32),
    "narrowing floats": lambda i: torch.tensor([i], dtype=torch.float64 if i % 2 else torch.float16),
    "narrowing large": lambda i: torch.full((40_000,), i, dtype=torch.float64 if i % 2 else torch.float32),
    "floats after integers": lambda i: torch.tensor([i], dtype=torch.float32 if i % 2 else torch.int32),
    "mixed numbers": lambda i: float(i) if i % 2 else i,
}


# -- errors -----------------------------------------------------------------------------------------------------------


class TwoArguments(Exception):
    """Cannot be made of one string."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


def _raising(make: Callable[[Any], BaseException]) -> Callable[[Any], None]:
    def call(index: Any) -> None:
        raise make(index)

    return call


ERRORS: dict[str, Callable[[Any], None]] = {
    "value": _raising(lambda i: ValueError(f"sample {i} is bad")),
    "key": _raising(lambda i: KeyError(f"name {i}")),
    "lookup": _raising(lambda i: IndexError(i)),
    "os": _raising(lambda i: FileNotFoundError(2, "No such file or directory", f"{i}.jpg")),
    "two arguments": _raising(lambda i: TwoArguments(i, "because")),
    "no text": _raising(lambda i: RuntimeError()),
    "several lines": _raising(lambda i: ValueError("first\nsecond")),
    "assertion": _raising(lambda i: AssertionError(f"{i}")),
    "not implemented": _raising(lambda i: NotImplementedError("later")),
    "stop": _raising(lambda i: StopIteration()),
}


# -- whole datasets ---------------------------------------------------------------------------------------------------


def tensors() -> TensorDataset:
    x = torch.arange(N * 4.0).reshape(N, 4)
    return TensorDataset(x, torch.arange(N))


def memmap(folder: Path) -> Any:
    path = folder / "array.npy"
    if not path.exists():
        np.save(path, np.arange(N * 3.0).reshape(N, 3))
    return np.load(path, mmap_mode="r")


DATASETS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: Made("number"),
    "drawing": Drawing,
    "informed": Informed,
    "bulk": lambda: Bulk("number"),
    "no bulk": lambda: NoBulk("number"),
    "tensors": tensors,
    "stack": lambda: StackDataset(Made("tensor"), tensors()),
    "named stack": lambda: StackDataset(a=Made("number"), b=Bulk("float")),
    "concat": lambda: ConcatDataset([Made("number", 10), Bulk("float", 7), Made("number", 6)]),
    "subset": lambda: Subset(Made("number", 60), list(range(50, 50 - N, -1))),
    "bulk subset": lambda: Subset(Bulk("number", 60), list(range(50, 50 - N, -1))),
    "split": lambda: random_split(Made("number", 40), [N, 17], torch.Generator().manual_seed(1))[0],
    "nested": lambda: Made("nested"),
    "large": lambda: Made("large pair"),
    "a list": lambda: [f"sample {i}" for i in range(N)],
    "a dict": lambda: {i: i * 2 for i in range(N)},
}


# -- what is given to a loader beside it ------------------------------------------------------------------------------


def as_list(samples: Any) -> Any:
    """Collates nothing."""
    return samples


def with_info(samples: Any) -> Any:
    """Collates nothing, and says in which worker."""
    info = get_worker_info()
    return samples, None if info is None else (info.id, info.num_workers, info.seed, type(info.dataset).__name__)


def draws(worker: int) -> None:
    """A start function that draws from every generator."""
    random.random()
    np.random.rand(worker + 1)
    torch.rand(3)


def marks(worker: int) -> None:
    """A start function that notes who it was called for."""
    info = get_worker_info()
    assert info is not None
    own_process = os.getpid() != os.getppid()
    if hasattr(info.dataset, "__dict__"):
        info.dataset.mark = (worker, info.id, info.seed, own_process, random.random())


def fails(worker: int) -> None:
    """A start function that raises."""
    raise LookupError(f"no device for worker {worker}")


class Everything(Dataset):
    """A sample of every kind: keys are (kind, number)."""

    def __len__(self) -> int:
        return len(SAMPLES)

    def __getitem__(self, key: tuple[str, int]) -> Any:
        return SAMPLES[key[0]](key[1])


class Switched(Dataset):
    """Another dataset may be put in between epochs: the loader is the same, and so are its processes' ancestors."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: Any) -> Any:
        return self.inner[index]

    @property
    def __getitems__(self) -> Any:
        return getattr(self.inner, "__getitems__", None)


class Facts(Made):
    """What a worker's process is like."""

    def __init__(self, n: int = 4) -> None:
        super().__init__("number", n)

    def __getitem__(self, index: Any) -> Any:
        info = get_worker_info()
        assert info is not None
        try:
            info.id = 9
            frozen = False
        except Exception:
            frozen = True
        facts = (torch.get_num_threads(), torch.is_grad_enabled(), str(torch.get_default_dtype()), torch.initial_seed())
        return index, *facts, info.worker_method, repr(info.rng), frozen, os.getcwd(), os.environ.get("FACT"), sys.path


class Gapped(Made):
    """Sample i is every other column of row i of one large tensor."""

    def __init__(self, n: int = 6) -> None:
        super().__init__("number", n)
        self.table = torch.arange(n * 8.0).reshape(n, 8)

    def __getitem__(self, index: Any) -> Any:
        return self.table[index, ::2]


class Noting(Made):
    """Notes in memory that processes share which samples have been fetched, and by whom."""

    def __init__(self, n: int = 6) -> None:
        super().__init__("number", n)
        self.notes = torch.zeros(n, dtype=torch.int64).share_memory_()

    def __getitem__(self, index: Any) -> Any:
        self.notes[index] += index + 1
        return index


class Late(Made):
    """Sample 2 takes a while, the first time."""

    def __getitem__(self, index: Any) -> Any:
        if index == 2:
            time.sleep(0.9)
        return index
