"""CUDA, and ROCm under its name: torch's streams and events, and the runtime's page-locking.

Unverified on hardware. Everything is by documented functions of torch and of the CUDA runtime; the error paths are
tested with a runtime that answers what the real one does (`runtime=`), the rest by tests that need a device.

Everything happens inside `torch.cuda.device(self.device)`: the current device of a thread is the first one until it is
told otherwise, and whatever makes a context there takes some hundred MB of it, in every process of a machine. So
leaving a stream inside of it never goes back to another device.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import torch

from aloader.device.accelerators import LockRefusedError
from aloader.device.ranges import Ranges, copy_in_pieces
from aloader.device.runtime import Runtime, loaded, wake
from aloader.device.structure import memory_of

#: `cudaHostRegisterPortable`: page-locked for every context, not only for the one that is current.
_PORTABLE: Final = 1


class Cuda:
    """One CUDA device. Unverified on hardware. Nothing initialises CUDA before `open`, or the first call that needs it.

    cuda: torch's module. runtime: what makes the `Runtime`, once CUDA is initialised. waking: makes the context of the
    device with this index, if it can, before torch does.
    """

    locks = True

    def __init__(
        self,
        device: torch.device,
        *,
        cuda: Any = torch.cuda,
        runtime: Callable[[], Runtime] | None = None,
        waking: Callable[[int], None] = wake,
    ) -> None:
        if device.type != "cuda" or device.index is None:
            raise ValueError(f"expected a CUDA device with its index, such as cuda:0, but got {device}")
        self.device = device
        self._cuda = cuda
        self._make_runtime = runtime or (lambda: Runtime(cuda.cudart(), self._touch, loaded()))
        self._runtime: Runtime | None = None
        self._wake = waking
        self._side: Any = None
        self._opening = threading.Lock()
        self._locked = Ranges()

    def __repr__(self) -> str:
        return f"Cuda({str(self.device)!r})"

    # -- opening ------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the context and the side stream. RuntimeError where there is no such device."""
        with self._opening:
            if self._side is None:
                self._wake(self.device.index)
                self._check()
                with self._here():
                    self._side = self._cuda.Stream(self.device)

    def _check(self) -> None:
        there = self._cuda.is_available()
        said = self._initialised()
        if said or not there:
            raise self._refusal(f"torch says: {said}" if said else "torch finds no CUDA device")
        count = self._cuda.device_count()
        if self.device.index >= count:
            have = "the only one is cuda:0" if count == 1 else f"there are cuda:0 to cuda:{count - 1}"
            raise self._refusal(f"{have}, counted among those that CUDA_VISIBLE_DEVICES leaves")

    def _refusal(self, why: str) -> RuntimeError:
        return RuntimeError(
            f'device="{self.device}" cannot be used: {why}. Look at `nvidia-smi`, at CUDA_VISIBLE_DEVICES, and in a '
            'container at `docker run --gpus all`; or give device="cpu"'
        )

    def _initialised(self) -> str:
        """Initialise CUDA; what torch says if it does not."""
        try:
            self._cuda.init()
        except Exception as error:  # RuntimeError, AssertionError; of what was put off until now, torch's own
            return str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        return ""

    def _here(self) -> AbstractContextManager[Any]:
        device: AbstractContextManager[Any] = self._cuda.device(self.device)
        return device

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """The same, for calls that a CUDA graph which the program captures in another thread would not allow."""
        with self._here(), self._calls.unhindered():
            yield

    def _touch(self) -> None:
        """Launch something tiny, which raises an error that an earlier call has left."""
        with self._here():
            torch.zeros(1, device=self.device)

    # -- streams and events -------------------------------------------------------------------------------------------

    @property
    def side(self) -> Any:
        """The stream that copies run on; None before `open`, since who asks whether this is an Accelerator reads it."""
        return self._side

    def current(self) -> Any:
        """The calling thread's current stream of this device."""
        return self._cuda.current_stream(self.device)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        """Inside, the calling thread's current device is this one, and its stream that one."""
        with self._here(), self._cuda.stream(stream):
            yield

    def record(self, stream: Any) -> Any:
        """An event behind all that this stream has been given. Who waits for it sleeps, and does not spin."""
        event = self._cuda.Event(blocking=True)
        event.record(stream)
        return event

    def wait(self, stream: Any, event: Any) -> None:
        """Let the stream wait, on the device."""
        stream.wait_event(event)

    def passed(self, event: Any) -> bool:
        """Whether the device has come to this event."""
        with self._aside():  # torch asks in whatever device is current, and makes a context there
            return bool(event.query())

    def join(self, event: Any) -> None:
        """Wait in the calling thread, without the GIL."""
        with self._aside():
            event.synchronize()

    # -- memory -------------------------------------------------------------------------------------------------------

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """Begin a copy on the current stream. One that is on this device already is given back as it is."""
        if tensor.device == self.device:
            return tensor
        with self._here(), torch.no_grad():
            if not _is_plain(tensor):
                made = tensor.to(self.device, non_blocking=True)
            else:
                made = torch.empty_like(tensor, device=self.device)
                copy_in_pieces(made, tensor, self._locked.borders(tensor))
        return made.requires_grad_() if tensor.requires_grad else made

    def record_stream(self, tensor: torch.Tensor, stream: Any) -> None:
        """Let torch's allocator wait for this stream before it gives the tensor's memory to others."""
        for part in memory_of(tensor):
            if part.is_cuda:
                part.record_stream(stream)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in page-locked memory: torch's, or memory that was locked here. True of what cannot be pinned
        either: tensors that are on a device, and subclasses that do not know."""
        if not tensor.is_cpu:
            return True
        with self._here():
            if _is_plain(tensor):
                return tensor.is_pinned()
            try:
                return tensor.is_pinned()
            except (RuntimeError, TypeError):  # NotImplementedError too
                return True

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in torch's page-locked memory: always one, since `tensor.pin_memory()` hands out a view of memory that
        was locked here itself."""
        with self._aside(), torch.no_grad():
            if not _is_plain(tensor):
                return tensor.pin_memory()
            made = torch.empty_like(tensor, pin_memory=True).copy_(tensor)
        return made.requires_grad_() if tensor.requires_grad else made

    def lock(self, address: int, nbytes: int) -> None:
        """Page-lock memory of this process."""
        self._locked.add(address, nbytes)  # before it is locked: a border too many harms no copy
        with self._aside():
            said = self._calls.register(address, nbytes, _PORTABLE)
        if said is not None:
            self._locked.discard(address)
            raise LockRefusedError(
                f"CUDA does not page-lock {nbytes} bytes: {said}. Give the loader a smaller memory_limit; or allow it "
                "more, where the driver heeds limits: `ulimit -l unlimited`, `docker run --ulimit memlock=-1`"
            )

    def unlock(self, address: int) -> None:
        """Undo `lock`. Nothing while the interpreter ends: the runtime may have gone, and the memory goes anyway."""
        if sys.is_finalizing():
            return
        with self._aside():
            said = self._calls.unregister(address)
        self._locked.discard(address)
        if said is not None:
            raise RuntimeError(f"CUDA does not unlock the memory at {address:#x}: {said}")

    @property
    def _calls(self) -> Runtime:
        if self._runtime is None:
            self._runtime = self._make_runtime()
        return self._runtime

    # -- random numbers -----------------------------------------------------------------------------------------------

    def random_state(self) -> torch.Tensor:
        """The state of the device's default generator: 16 bytes, on the CPU."""
        state: torch.Tensor = self._generator.get_state()
        return state

    def set_random_state(self, state: torch.Tensor) -> None:
        """Put one back."""
        self._generator.set_state(state)

    def seed(self, number: int) -> None:
        """Seed it (64 bits)."""
        self._generator.manual_seed(number)

    @property
    def _generator(self) -> Any:
        self._cuda.init()  # makes them, unless it has
        return self._cuda.default_generators[self.device.index]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is numbers in CPU memory and nothing else."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )
