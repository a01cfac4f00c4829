"""An accelerator that is not there: torch's rules of streams, events and memory, on the CPU and in virtual time.

How time goes is in `simulated_streams`, memory in `simulated_memory` and `simulated_host`; here they meet. No real
clock, no thread of its own, nothing of asyncio. One lock makes it safe to call from several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from aloader.device import accelerators
from aloader.testing.simulated_card import Card, Speeds
from aloader.testing.simulated_kernels import Launch, Result
from aloader.testing.simulated_memory import Layout
from aloader.testing.simulated_streams import Event, Schedule, Span, Stream

Failure = Collection[int] | Callable[[int], Exception | None]


class SimulatedAccelerator:
    """Stands for a GPU in tests: what would go wrong on a card goes wrong here, every time, and says so.

    Give it to a loader as `device=`, and write the training step with its methods: `launch` for what the GPU computes,
    `read` for `.cpu()` and `.item()`, `to` for `tensor.to("cuda")`. Tensors "on the device" are CPU tensors whose bytes
    arrive when the copy has been executed, in virtual time: before that, they hold poison (0xFB: -2.6e36 as float32)::

        sim = SimulatedAccelerator()
        async with DataLoader(dataset, batch_size=8, device=sim) as loader:
            async for batch in loader:
                sim.launch("step", 0.010, model, reads=[batch])   # seconds that it takes on the device
        sim.check()                                               # no rule was broken
        print(as_text(sim.trace))                                 # aloader.testing.timeline

    `now` is the host's clock, in seconds. Each call costs the host `host_cost` (`passed`: `poll_cost`); `advance` is
    for what it does between them. `join`, `read` and `synchronize` let it wait. Real time never enters.

    Mistakes give wrong bytes and a line in `violations`:

    - a kernel begins before the copy of what it reads has ended (nobody waited for the event);
    - a device tensor is dropped, and its memory used again, before a stream that reads it is done (no `record_stream`);
    - the source of a running copy is overwritten, or dropped and its memory used by somebody else;
    - memory is page-locked twice, unlocked twice, or unlocked under a running copy.

    Only time decides: a mistake that happens to do no harm with these durations is not seen. Try others.

    h2d, d2h, pageable: bandwidths of copies, in bytes a second. latency: what each copy takes beyond that, in seconds.
    refuse_locks: `lock` is refused with this text. lock_limit: bytes that can be page-locked. fail_open: `open` raises
    RuntimeError with this text. fail_copies: which calls of `copy`, from 1, fail as if memory had run out, or a
    function that is given the number and returns an exception or None. without: calls that do nothing ("wait",
    "record_stream"), to see that a test would notice.
    """

    locks = True

    def __init__(
        self,
        *,
        h2d: float = 50e9,
        d2h: float = 50e9,
        pageable: float = 12e9,
        latency: float = 10e-6,
        host_cost: float = 5e-6,
        poll_cost: float | None = None,
        refuse_locks: str | None = None,
        lock_limit: int | None = None,
        fail_open: str | None = None,
        fail_copies: Failure = frozenset(),
        without: Collection[str] = (),
    ) -> None:
        self.device = torch.device("cpu")
        self.generator = torch.Generator()
        self.opened = 0  # calls of `open`
        self.copies = 0  # calls of `copy`
        self.without = set(without)
        self.fail_copies = fail_copies
        self._host_cost = host_cost
        self._poll_cost = host_cost if poll_cost is None else poll_cost
        self._fail_open = fail_open
        self._lock = threading.RLock()
        self._local = threading.local()
        self._card = Card(Speeds(h2d, d2h, pageable, latency), refuse_locks, lock_limit)
        self._compute, self._side = Stream("compute"), Stream("side")
        self._streams = [self._compute, self._side]

    # -- the protocol ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        if self._fail_open is not None:
            raise RuntimeError(self._fail_open)
        self.opened += 1

    @property
    def side(self) -> Stream:
        return self._side  # before `open`, too: `isinstance(…, Accelerator)` looks at it

    def current(self) -> Stream:
        """The calling thread's: until it says otherwise, all threads share "compute"."""
        with self._call("current", 0.0):
            return self._current()

    @contextmanager
    def on(self, stream: Stream) -> Iterator[Stream]:
        with self._call("on", 0.0):
            before = self._current()
        self._local.stream = stream
        try:
            yield stream
        finally:
            self._local.stream = before

    def record(self, stream: Stream) -> Event:
        with self._call("record"):
            return self._card.schedule.record(stream)

    def wait(self, stream: Stream, event: Event) -> None:
        with self._call("wait"):
            if "wait" not in self.without:
                self._card.schedule.wait(stream, event)

    def passed(self, event: Event) -> bool:
        with self._call("passed", self._poll_cost):
            return event.at <= self._card.schedule.now

    def join(self, event: Event) -> None:
        with self._call("join"):
            self._card.schedule.advance_to(event.at)

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._call("copy"):
            self.copies += 1
            failure = self._failure(self.copies)
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # the traceback holds this frame
            return self._copy(tensor, blocking=False)

    def record_stream(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Ordinary CPU memory is not looked at."""
        with self._call("record_stream"):
            allocation = self._card.memory.find(tensor)
            if allocation is not None and "record_stream" not in self.without:
                allocation.streams.append(stream)

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        with self._call("is_pinned", 0.0):
            return self._card.host.is_pinned(tensor)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        with self._call("pin"):
            return self._card.host.pin(tensor, self._card.schedule.now)

    def lock(self, address: int, nbytes: int) -> None:
        with self._call("lock"):
            self._card.host.lock(address, nbytes)

    def unlock(self, address: int) -> None:
        with self._call("unlock"):
            self._card.host.unlock(address, self._card.running())

    def random_state(self) -> torch.Tensor:
        with self._call("random_state", 0.0):
            return self.generator.get_state()

    def set_random_state(self, state: torch.Tensor) -> None:
        with self._call("set_random_state", 0.0):
            self.generator.set_state(state)

    def seed(self, number: int) -> None:
        with self._call("seed", 0.0):
            self.generator.manual_seed(number)

    # -- what a program does on a device -----------------------------------------------------------------------------

    def to(self, tensor: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        """`tensor.to("cuda", non_blocking=…)`, on the current stream.

        Memory from `pin` may be dropped at once: its copies are recorded. Of other page-locked memory torch records
        nothing, so that its owner must keep it. From pageable memory the host waits.
        """
        with self._call("to"):
            return self._copy(tensor, blocking=not non_blocking)

    def launch(
        self,
        name: str,
        seconds: float,
        function: Callable[..., Any] | None = None,
        reads: Sequence[torch.Tensor] = (),
    ) -> Launch:
        """A kernel on the current stream. Does not keep `reads` alive, as a kernel would not.

        `function(*reads)` runs when the kernel has been executed, on what the memory of `reads` holds by then.
        Its result is the `result` of what is returned, and must not be a view of them.
        """
        with self._call("launch"):
            return self._card.launch(self._current(), name, seconds, function, reads)

    def apply(
        self, function: Callable[..., torch.Tensor], *reads: torch.Tensor, seconds: float = 1e-4, name: str = "apply"
    ) -> torch.Tensor:
        """What `function(*reads)` computes, in device memory of the current stream: for a `device_transform`.

        Its shape and dtype are asked for at once, with tensors of the meta device.
        """
        with self._call("apply"):
            like = function(*(torch.empty_like(tensor, device="meta") for tensor in reads))
            allocation, result = self._card.allocate(like, self._current())
            self._card.launch(self._current(), name, seconds, function, reads, Result(allocation, Layout.of(result)))
            return result

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor.cpu()`: the host waits for the current stream and the copy."""
        with self._call("read"):
            launch = self._card.read(tensor, self._current())
            self._card.schedule.advance_to(launch.operation.span.end)
            result: torch.Tensor = launch.result
            return result

    def synchronize(self, stream: Stream | None = None) -> None:
        """The host waits for a stream, or for all."""
        with self._call("synchronize"):
            streams = self._streams if stream is None else [stream]
            self._card.schedule.advance_to(max(each.free_at for each in streams))

    def advance(self, seconds: float) -> None:
        """The host does something else for so long."""
        with self._call("advance", seconds):
            pass

    def new_stream(self, name: str) -> Stream:
        """One more stream."""
        with self._call("new_stream"):
            self._streams.append(Stream(name))
            return self._streams[-1]

    # -- for tests ---------------------------------------------------------------------------------------------------

    @contextmanager
    def assumed(self) -> Iterator[None]:
        """Inside, this is what torch's current accelerator is taken for."""
        token = accelerators.assumed.set(self)
        try:
            yield
        finally:
            accelerators.assumed.reset(token)

    @contextmanager
    def named(self, name: str) -> Iterator[None]:
        """Inside, copies of the calling thread have this name in `trace`."""
        before = getattr(self._local, "name", None)
        self._local.name = name
        try:
            yield
        finally:
            self._local.name = before

    def check(self) -> None:
        """Execute all that was given. AssertionError if a rule has been broken so far."""
        if self.opened:
            self.synchronize()
        if self.violations:
            raise AssertionError("\n".join(("the simulated accelerator was misused:", *self.violations)))

    @property
    def violations(self) -> list[str]:
        """The rules that have been broken, one sentence each."""
        return self._card.violations

    @property
    def waits(self) -> int:
        """Copies that the host had to wait for: from pageable memory, or blocking ones."""
        return self._card.waits

    @property
    def waited(self) -> float:
        """And for how long, in virtual seconds."""
        return self._card.waited

    @property
    def now(self) -> float:
        """The host's clock: virtual seconds."""
        return self._card.schedule.now

    @property
    def trace(self) -> list[Span]:
        """What has been executed, in the order of its ends."""
        return self._card.schedule.trace

    @property
    def locked(self) -> dict[int, int]:
        """What is page-locked now, beside torch's own: bytes by address."""
        return dict(self._card.host.locked)

    @property
    def locked_calls(self) -> list[tuple[int, int]]:
        """The address and the bytes of each call of `lock`, refused ones too."""
        return self._card.host.calls

    @property
    def resident_bytes(self) -> int:
        """Device memory of living tensors, and what was dropped but may not be used again yet."""
        with self._lock:
            self._card.collect()
            return self._card.memory.resident_bytes

    @property
    def peak_bytes(self) -> int:
        """The most that `resident_bytes` has been."""
        return self._card.memory.peak_bytes

    @property
    def reserved_bytes(self) -> int:
        """Device memory of all blocks, used or not."""
        return self._card.memory.reserved_bytes

    # -- inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _call(self, name: str, seconds: float | None = None) -> Iterator[Schedule]:
        with self._lock:
            if not self.opened:
                raise RuntimeError(f"SimulatedAccelerator.{name} before open()")
            self._card.collect()  # what was dropped since the last call was dropped before this one
            schedule = self._card.schedule
            schedule.advance_to(schedule.now + (self._host_cost if seconds is None else seconds))
            yield schedule

    def _current(self) -> Stream:
        stream: Stream = getattr(self._local, "stream", self._compute)
        return stream

    def _copy(self, tensor: torch.Tensor, *, blocking: bool) -> torch.Tensor:
        name = getattr(self._local, "name", None) or "copy"
        return self._card.copy(tensor, self._current(), name, blocking=blocking)

    def _failure(self, number: int) -> Exception | None:
        if callable(self.fail_copies):
            return self.fail_copies(number)
        if number in self.fail_copies:
            return torch.cuda.OutOfMemoryError(f"CUDA out of memory. (simulated: copy {number})")
        return None
