"""A copy stops where one page-locked range ends and the next begins."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aloader.device.ranges import Ranges, copy_in_pieces


def borders_of(tensor: torch.Tensor, *sizes: int) -> list[int]:
    """With ranges of these sizes, one behind the other from where the tensor's storage begins, added from the last, as
    `Pages` locks them."""
    ranges, at = Ranges(), tensor.untyped_storage().data_ptr() + sum(sizes)
    for size in reversed(sizes):
        at -= size
        ranges.add(at, size)
    return ranges.borders(tensor)


def test_borders_are_where_a_range_ends_inside_of_the_tensor():
    tensor = torch.arange(100, dtype=torch.uint8)
    assert borders_of(tensor) == []
    assert borders_of(tensor, 100) == []
    assert borders_of(tensor, 200) == []
    assert borders_of(tensor, 40, 40, 40) == [40, 80]
    assert borders_of(tensor[10:50], 40, 40) == [30]
    assert borders_of(tensor[40:], 40, 60) == []


def test_a_range_that_is_unlocked_has_no_border():
    tensor, ranges = torch.arange(100, dtype=torch.uint8), Ranges()
    ranges.add(tensor.data_ptr(), 50)
    ranges.discard(tensor.data_ptr())
    ranges.discard(tensor.data_ptr())
    assert ranges.borders(tensor) == []


TENSORS = {
    "flat": torch.arange(24.0),
    "a view": torch.arange(48.0)[24:],
    "transposed": torch.arange(24.0).view(4, 6).t(),
    "channels last": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "expanded": torch.arange(6.0).expand(4, 6),
    "with gaps": torch.arange(48.0).view(24, 2)[:, 0],
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
@settings(max_examples=10, deadline=None)
@given(borders=st.lists(st.integers(1, 95), unique=True).map(sorted))
def test_pieces_are_the_whole(tensor, borders):
    target = torch.empty_like(tensor).fill_(-1)
    copy_in_pieces(target, tensor, borders)
    assert torch.equal(target, tensor)


class Watched(torch.Tensor):
    """Notes from where it is copied into, and whether that is waited for."""

    copies: list[tuple[int, int, bool]]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.copy_:
            begin, non_blocking = args[1].data_ptr(), (kwargs or {}).get("non_blocking", False)
            cls.copies.append((begin, begin + args[1].nbytes, non_blocking))
        return super().__torch_function__(func, types, args, kwargs or {})


def watched(source: torch.Tensor, borders: list[int]) -> list[tuple[int, int, bool]]:
    """The copies: where they begin and end, and whether the CPU goes on."""

    class Fresh(Watched):
        copies = []

    copy_in_pieces(torch.empty_like(source).as_subclass(Fresh), source, borders)
    return Fresh.copies


def test_no_piece_lies_on_both_sides_of_a_border():
    source = torch.arange(100, dtype=torch.int32)
    ends = watched(source, borders_of(source, 128, 128, 128, 128))
    first = source.data_ptr()
    assert [(low - first, high - first) for low, high, _ in ends] == [(0, 128), (128, 256), (256, 384), (384, 400)]


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize("borders", [[], [8, 40]], ids=["whole", "pieces"])
def test_nobody_waits_for_a_piece(tensor, borders):
    copies = watched(tensor, borders)
    assert copies
    assert all(non_blocking for _, _, non_blocking in copies)
