"""Ranges of memory that were page-locked each by itself, and copies that do not cross from one into the next.

CUDA refuses a copy from two of them at once ("invalid argument"), also where the one begins at the other's end: a leaf
that is larger than `options.LOCK_BYTES` lies in several. Only addresses and tensors here, no runtime.
"""

from __future__ import annotations

import torch


class Ranges:
    """Added and taken out in any thread, while others copy."""

    def __init__(self) -> None:
        self._ends: dict[int, int] = {}  # by where they begin

    def add(self, address: int, nbytes: int) -> None:
        """A range has been page-locked."""
        self._ends[address] = address + nbytes

    def discard(self, address: int) -> None:
        """It no longer is."""
        self._ends.pop(address, None)

    def borders(self, tensor: torch.Tensor) -> list[int]:
        """The bytes in a tensor's memory at which a range ends. Only of tensors without gaps."""
        if not self._ends:
            return []
        low = tensor.data_ptr()
        high = low + tensor.nbytes
        return sorted(end - low for end in list(self._ends.values()) if low < end < high)


def copy_in_pieces(target: torch.Tensor, source: torch.Tensor, borders: list[int]) -> None:
    """Begin a copy that stops at each of these bytes of the source. `target` is what `empty_like` gives for it."""
    if not borders:
        target.copy_(source, non_blocking=True)
    elif target.stride() != source.stride():  # gaps, or places that are there twice: `borders` do not hold
        target.copy_(source.contiguous(), non_blocking=True)
    else:
        into, out_of = _bytes_of(target), _bytes_of(source)
        for low, high in zip([0, *borders], [*borders, len(out_of)], strict=True):
            into[low:high].copy_(out_of[low:high], non_blocking=True)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor without gaps, in the order in which they lie in memory."""
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)
