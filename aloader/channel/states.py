"""The states of the process's three global generators: `random`, `numpy.random` and torch's on the CPU.

They are exchanged around every step of an async sample, so this must be fast: `random.getstate()` takes 9 µs, and
`numpy.random.get_state()` 43. Both are a Mersenne Twister in C, 624 words and a position, and its memory is copied as
it is: numpy tells its address, Python's lies right behind the object's header (which is verified, with the slow way in
reserve). All of it takes 1 to 2 µs. What lies elsewhere is a normal deviate that each of them keeps for the next call.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from typing import Any, Final, NamedTuple

import numpy as np
import torch

_WORDS: Final = 625
_PACKED: Final = struct.Struct(f"={_WORDS}I")
_HEADER: Final = struct.Struct("<?d?dq")  # whether Python keeps a deviate, and it; the same of numpy; numpy's length


class State(NamedTuple):
    """Of all three."""

    python: bytes
    python_deviate: float | None
    numpy: bytes
    numpy_deviate: float | None
    torch: torch.Tensor

    def packed(self) -> bytes:
        """As bytes, for another process."""
        kept = (x for one in (self.python_deviate, self.numpy_deviate) for x in (one is not None, one or 0.0))
        return b"".join((_HEADER.pack(*kept, len(self.numpy)), self.python, self.numpy, self.torch.numpy().tobytes()))

    @classmethod
    def unpacked(cls, packed: bytes) -> State:
        """Out of bytes."""
        has_python, of_python, has_numpy, of_numpy, length = _HEADER.unpack_from(packed)
        python, numpy = packed[_HEADER.size :][: _PACKED.size], packed[_HEADER.size + _PACKED.size :][:length]
        of_torch = bytearray(packed[_HEADER.size + _PACKED.size + length :])
        state = torch.frombuffer(of_torch, dtype=torch.uint8)
        return cls(python, of_python if has_python else None, numpy, of_numpy if has_numpy else None, state)


class Generators:
    """The three of this process. `shared`: they are the user's, who finds them as they were after every step."""

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self._python = _Python()
        self._numpy = _Numpy()
        self._torch = torch.default_generator

    def seed(self, number: int) -> None:
        """All of them, from a number of 64 bits: numpy and torch take 32, and would make the same words of the same."""
        random.seed(number)
        self._numpy.seed(number >> 32)
        self._torch.manual_seed(number)

    def take(self, *, anybodys: bool = False) -> State:
        """Their states. numpy's is disturbed by that: `seed` or `put` comes next, or nobody cares.

        `anybodys`: others than those who draw may have set them, since they were seeded or put here.
        """
        if anybodys:
            self._numpy.doubt()
        return State(*self._python.get(), *self._numpy.take(), self._torch.get_state())

    def put(self, state: State) -> None:
        """Go on from these states."""
        self._python.set(state.python, state.python_deviate)
        self._numpy.set(state.numpy, state.numpy_deviate)
        self._torch.set_state(state.torch)

    def get(self) -> State:
        """Their states. They stay as they are."""
        state = self.take(anybodys=True)
        self._numpy.set(state.numpy, state.numpy_deviate)
        return state


class Watch:
    """Says whether anybody has drawn since it was last asked: 2 µs where nobody has."""

    def __init__(self, generators: Generators) -> None:
        self._generators = generators
        self._seen: State | None = None
        self._torch = b""

    def changed(self) -> State | None:
        """Their states, if somebody has, and at first. Where a deviate is kept: always, for it may be another's."""
        generators, seen = self._generators, self._seen
        if (
            seen is not None
            and seen.numpy_deviate is None
            and generators._numpy.words() == seen.numpy
            and generators._python.get() == (seen.python, seen.python_deviate)
            and _bytes_of(generators._torch.get_state()) == self._torch
        ):
            return None
        self._seen = state = generators.get()
        self._torch = _bytes_of(state.torch)
        return state


def _bytes_of(state: torch.Tensor) -> bytes:
    return ctypes.string_at(state.data_ptr(), state.numel())  # a third of what `.numpy().tobytes()` takes


class _Python:
    def __init__(self) -> None:
        self._generator: Any = random._inst
        self._memory = _memory_of(self._generator)

    def get(self) -> tuple[bytes, float | None]:
        if self._memory is not None:
            return bytes(self._memory), self._generator.gauss_next
        _, words, deviate = self._generator.getstate()
        return _PACKED.pack(words[-1], *words[:-1]), deviate

    def set(self, words: bytes, deviate: float | None) -> None:
        if self._memory is not None:
            self._memory[:] = words
            self._generator.gauss_next = deviate
        else:
            position, *rest = _PACKED.unpack(words)
            self._generator.setstate((3, (*rest, position), deviate))


def _memory_of(generator: random.Random) -> memoryview | None:
    """Where CPython keeps the position and the words; None if they are not there."""
    header = object.__basicsize__
    if sys.implementation.name != "cpython" or type(generator).__basicsize__ < header + _PACKED.size:
        return None
    memory = memoryview((ctypes.c_char * _PACKED.size).from_address(id(generator) + header)).cast("B")
    words = generator.getstate()[1]
    return memory if bytes(memory) == _PACKED.pack(words[-1], *words[:-1]) else None


class _Numpy:
    """Whether numpy keeps a deviate is not told in less than 43 µs. But asked for a normal deviate, it gives the one
    that it keeps, and its words stay as they are.

    Where the user has given it a bit generator of another kind (`np.random.set_bit_generator`), it cannot be seeded,
    and says so; its states are nothing.
    """

    def __init__(self) -> None:
        self._state = np.random.mtrand._rand
        self._bits: Any = None
        self._words: memoryview | None = None
        self._set_to: bytes | None = None  # the words that it was set to, with no deviate kept

    @property
    def _memory(self) -> memoryview | None:
        bits = self._state._bit_generator
        if bits is not self._bits:
            self._bits, self._words, self._set_to = bits, None, None
            if type(bits) is np.random.MT19937:
                address = bits.ctypes.state_address
                self._words = memoryview((ctypes.c_char * _PACKED.size).from_address(address)).cast("B")
        return self._words

    def seed(self, number: int) -> None:
        self._state.seed(number)
        self._set_to = self.words()

    def doubt(self) -> None:
        """Others may have set it since."""
        self._set_to = None

    def words(self) -> bytes:
        memory = self._memory
        return b"" if memory is None else bytes(memory)

    def take(self) -> tuple[bytes, float | None]:
        words = self.words()
        if not words or words == self._set_to:
            return words, None
        deviate = self._state.standard_normal()
        return words, deviate if self.words() == words else None

    def set(self, words: bytes, deviate: float | None) -> None:
        memory = self._memory
        if not words or memory is None:
            return
        if deviate is None:
            self._state.seed(0)  # lets go of a deviate
            memory[:] = words
            self._set_to = words
        else:
            key = np.frombuffer(words, np.uint32)
            self._state.set_state(("MT19937", key[:-1], int(key[-1]), 1, deviate))
            self._set_to = None
