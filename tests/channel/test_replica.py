"""Copies within a process: data is another's, code is the same; what cannot be pickled is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from aloader.channel.replica import replicator


class Only(NamedTuple):
    dataset: Any


def copies(obj: Any, number: int = 2) -> list[Any]:
    make = replicator(Only(obj))
    return [make().dataset for _ in range(number)]


def test_data_is_copied_each_time() -> None:
    original = {"array": np.arange(10_000), "tensor": torch.arange(10_000), "list": [1, 2]}
    one, other = copies(original)
    one["array"][0] = one["tensor"][0] = one["list"][0] = -1
    for untouched in (original, other):
        assert (untouched["array"][0], int(untouched["tensor"][0]), untouched["list"][0]) == (0, 0, 1)
    assert one["array"].flags.writeable


def test_tensors_that_share_memory_share_it_in_a_copy() -> None:
    tensor = torch.zeros(10_000)
    (one,) = copies([tensor, tensor[:]], 1)
    one[0][0] = 1
    assert one[1][0] == 1
    assert tensor[0] == 0


def test_code_is_the_same() -> None:
    class Local:
        def method(self) -> None: ...

    local = Local()
    original = [Local, lambda: None, len, np, local.method, [].append, torch.nn.functional.relu, local]
    (one,) = copies(original, 1)
    assert all(one[place] is original[place] for place in (0, 1, 2, 3, 6))
    assert type(one[-1]) is Local
    assert one[-1] is not local
    assert one[4].__self__ is one[-1]
    one[5](3)
    assert original[5].__self__ == []  # type: ignore[attr-defined]


def test_what_pickling_leaves_out_is_left_out() -> None:
    class Keeps:
        def __init__(self) -> None:
            self.handle = (number for number in range(3))

        def __getstate__(self) -> dict[str, Any]:
            return {"handle": None}

    assert copies(Keeps(), 1)[0].handle is None


def test_a_mapped_file_is_opened_again(tmp_path: Path) -> None:
    np.arange(100_000).tofile(tmp_path / "tokens")
    tokens = np.memmap(tmp_path / "tokens", dtype=np.int64, mode="r")
    (one,) = copies(tokens[50:], 1)
    assert isinstance(one, np.memmap)
    assert one[0] == 50


def test_what_cannot_be_copied_is_named() -> None:
    with pytest.raises(TypeError, match=r"dataset\['a'\]: generator cannot be pickled"):
        copies({"a": (number for number in range(3))})
