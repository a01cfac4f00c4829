"""What torch and the CUDA runtime answer, without a device: for the paths on which something is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: What `cudaGetErrorString` says.
TEXTS = {
    1: "invalid argument",
    2: "out of memory",
    4: "driver shutting down",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
}


class Answer:
    """As torch's enum of codes: a number, but no int."""

    def __init__(self, code: int) -> None:
        self._code = code

    def __int__(self) -> int:
        return self._code


class FakeCudart:
    """`torch.cuda.cudart()`: a range cannot be registered twice, nor one that is not be unregistered.

    refuses: the code that registering answers. hidden: its pending error is seen by no library, only by kernels.
    """

    def __init__(self, refuses: int = 0, hidden: bool = False) -> None:
        self.refuses = refuses
        self.hidden = hidden
        self.registered: dict[int, tuple[int, int]] = {}
        self.pending = 0
        self.called: Callable[[], None] = lambda: None
        self.mode = 0  # how this thread minds graphs that others capture: globally

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> Answer:
        code = self.refuses or (712 if address in self.registered else 0)
        if not code:
            self.registered[address] = nbytes, flags
        return self._answer(code)

    def cudaHostUnregister(self, address: int) -> Answer:
        return self._answer(0 if self.registered.pop(address, None) else 713)

    def cudaGetErrorString(self, answer: Answer) -> str:
        return TEXTS[int(answer)]

    def cudaThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        """As the library's, which has what the module does not; given by reference, as ctypes does."""
        self.mode, mode._obj.value = mode._obj.value, self.mode
        return 0

    def use(self) -> None:
        """What a graph that another thread captures would not allow."""
        self.called()
        assert self.mode == 2, "a capture in another thread has failed"

    def _answer(self, code: int) -> Answer:
        self.use()
        self.pending = code or self.pending
        return Answer(code)

    def cudaGetLastError(self) -> int:
        """As the library's."""
        if self.hidden:
            return 0
        code, self.pending = self.pending, 0
        return code

    def kernel(self) -> None:
        """As whatever launches one."""
        code, self.pending = self.pending, 0
        if code:
            raise RuntimeError(f"CUDA error: {TEXTS[code]}")


class FakeEvent:
    """Notes what it is asked to do."""

    def __init__(self, blocking: bool, use: Callable[[], None]) -> None:
        self.blocking = blocking
        self.did: list[Any] = []
        self._use = use

    def record(self, stream: Any = None) -> None:
        self.did.append(("record", stream))

    def query(self) -> bool:
        self._use()
        return False

    def synchronize(self) -> None:
        self._use()
        self.did.append("synchronize")


class FakeStream:
    """The same."""

    def __init__(self) -> None:
        self.waits_for: list[FakeEvent] = []

    def wait_event(self, event: FakeEvent) -> None:
        self.waits_for.append(event)


class FakeCuda:
    """`torch.cuda` with so many devices. `contexts`: on which of them something has happened."""

    def __init__(self, count: int = 0, error: str = "", cudart: FakeCudart | None = None) -> None:
        self.count = count
        self.error = error
        self.calls = cudart or FakeCudart()
        self.now = 0
        self.initialised = 0
        self.contexts: set[int] = set()
        self.calls.called = lambda: self.contexts.add(self.now)

    def is_available(self) -> bool:
        return self.count > 0

    def device_count(self) -> int:
        return self.count

    def init(self) -> None:
        if self.error:
            raise RuntimeError(self.error)
        self.initialised += 1

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self.now = self.now, device.index
        yield
        self.now = before

    def Stream(self, device: Any) -> Any:
        self.contexts |= {self.now, device.index}
        return object()

    def current_stream(self, device: Any = None) -> Any:
        return "current", self.now if device is None else device.index

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        """Going back to the stream of another device is what makes a context there."""
        self.contexts.add(self.now)
        yield

    def Event(self, blocking: bool = False) -> FakeEvent:
        return FakeEvent(blocking, self.calls.use)

    def cudart(self) -> FakeCudart:
        self.contexts.add(self.now)
        return self.calls
