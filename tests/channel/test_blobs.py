"""Large `bytes` travel beside the stream, and come back as they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from aloader.channel.payload import Packed, pack, unpack
from aloader.options import LEASE_BYTES

LARGE = bytes(range(256)) * (LEASE_BYTES // 256)
OTHER = LARGE[::-1]


def there(packed: Packed) -> Any:
    """As the other process gets it: each leaf in memory of its own."""
    return unpack(packed.body, [np.frombuffer(bytearray(view), np.uint8) for view in packed.buffers])


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ([LARGE, OTHER, b"small"], 2),
        ((LARGE, 7), 1),
        (LARGE, 1),
        ({"image": [LARGE] + [OTHER] * 40, "label": [1, 2]}, 2),
        ([[LARGE, OTHER], (3, 4), {"deep": LARGE}], 2),
        ([b"small"] * 100, 0),
        ([], 0),
        ([bytearray(LARGE)], 0),  # pickle hands none out that is not wrapped, and writes it as it is
    ],
    ids=["list", "tuple", "alone", "dict", "transposed", "small", "empty", "bytearray"],
)
def test_they_come_back_equal_and_of_the_same_type(batch: Any, count: int) -> None:
    packed = pack(batch)
    assert len(packed.buffers) == count
    assert len(packed.body) < 2000 or not count
    back = there(packed)
    assert back == batch
    assert type(back) is type(batch)


def test_beside_tensors() -> None:
    tensor = torch.zeros(LEASE_BYTES, dtype=torch.uint8)
    back = there(pack([tensor, [LARGE, LARGE]]))
    assert torch.equal(back[0], tensor)
    assert back[1] == [LARGE, LARGE]
    assert back[1][0] is back[1][1]


def test_a_batch_that_lies_in_itself_is_written_as_before() -> None:
    batch: list[Any] = [LARGE]
    batch.append(batch)
    back = there(pack(batch))
    assert back[0] == LARGE
    assert back[1] is back


def test_a_tuple_may_lie_in_a_list_that_lies_in_it_and_lists_as_deep_as_pickle_goes() -> None:
    around: tuple[list[Any], bytes] = ([], LARGE)
    around[0].append(around)
    back = there(pack(around))
    assert back[0][0] is back
    deep: list[Any] = [LARGE]
    for _ in range(450):
        deep = [deep]
    assert there(pack([LARGE, deep]))[0] == LARGE


def test_the_batch_itself_is_left_as_it_is() -> None:
    batch = {"a": [LARGE], "b": (OTHER,)}
    pack(batch)
    assert type(batch["a"][0]) is type(batch["b"][0]) is bytes


def test_subclasses_go_their_own_way() -> None:
    class Names(list[bytes]):
        pass

    assert not pack(Names([LARGE])).buffers
