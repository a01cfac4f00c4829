"""The state of a torch generator as a few lines of text, and back.

One that nothing has been drawn from is its seed. Else it is the Mersenne Twister's 624 words of 32 bits, of which torch
keeps each in 64, with what stands before them (seed, position) and after (a normally distributed number for later).
"""

from __future__ import annotations

import base64
from typing import Any, Final

import numpy as np
import torch

from aloader.sampling import jsonable

_BEFORE: Final = 24
_WORDS: Final = 624
_SIZE: Final = 5056  # of a state in bytes, in the versions of torch that this was written for


def noted(generator: torch.Generator | None) -> dict[str, Any]:
    """What `restored` makes the same state of. None: torch's global generator. Draws nothing."""
    generator = torch.default_generator if generator is None else generator
    state, seed = generator.get_state(), generator.initial_seed()
    if generator.device.type == "cpu" and torch.equal(state, torch.Generator().manual_seed(seed).get_state()):
        return {"initial_seed": seed}
    packed = _packed(state)
    if packed is not None:
        return {"mt19937": base64.b64encode(packed).decode()}
    return {"state": jsonable.encode(state)}


def restored(note: dict[str, Any], into: torch.Generator | None = None) -> torch.Generator:
    """A generator in the noted state: `into`, or a new one."""
    generator = torch.Generator() if into is None else into
    if "initial_seed" in note:
        return generator.manual_seed(note["initial_seed"])
    packed = note.get("mt19937")
    generator.set_state(jsonable.decode(note["state"]) if packed is None else _unpacked(base64.b64decode(packed)))
    return generator


def _packed(state: torch.Tensor) -> bytes | None:
    """A state without the empty halves of its words; None for one that is laid out in another way."""
    if state.numel() != _SIZE:
        return None
    raw = state.numpy().tobytes()
    words = np.frombuffer(raw, "<u8", _WORDS, _BEFORE)
    if (words >> np.uint64(32)).any():
        return None
    return raw[:_BEFORE] + words.astype("<u4").tobytes() + raw[_BEFORE + 8 * _WORDS :]


def _unpacked(packed: bytes) -> torch.Tensor:
    words = np.frombuffer(packed, "<u4", _WORDS, _BEFORE).astype("<u8")
    raw = packed[:_BEFORE] + words.tobytes() + packed[_BEFORE + 4 * _WORDS :]
    return torch.from_numpy(np.frombuffer(raw, np.uint8).copy())
