"""Random numbers by name: every sample's are a function of (seed, epoch, index), whoever makes it and when.

A *key* is a 64-bit number for one epoch, derived from a seed and the epoch's number; from it and an index follows the
sample's own number. Nothing is drawn from a stream, so nothing depends on what was drawn before. BLAKE2b does the
mixing: neighbouring seeds, epochs and indices have nothing in common, and its results are the same everywhere.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import numpy as np


def epoch_key(seed: int, epoch: int) -> int:
    """The key of an epoch, in 64 bits."""
    return _hashed(f"epoch {seed} {epoch}".encode())


def worker_seed(seed: int) -> int:
    """Torch's base seed (63 bits, so that adding a worker's number never overflows) for a loader with a seed."""
    return _hashed(f"workers {seed}".encode()) >> 1


def sample_key(key: int, index: Any, purpose: str = "sample") -> int:
    """The number of one sample (or of another thing that is named by an index) under an epoch's key, in 64 bits."""
    return _hashed(f"{purpose} {key} ".encode() + _name(index))


def _name(index: Any) -> bytes:
    """An index as bytes: the same for equal indices, in every process."""
    if isinstance(index, int | np.integer) and not isinstance(index, bool):
        return b"%d" % int(index)
    if isinstance(index, str):
        return index.encode("utf-8", "surrogatepass")
    if isinstance(index, bytes):
        return index
    return repr(index).encode("utf-8", "surrogatepass")


def _hashed(text: bytes) -> int:
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
