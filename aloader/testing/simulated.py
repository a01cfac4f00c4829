"""An accelerator that is not there: torch's rules of streams, events and memory, on the CPU and in virtual time.

How time goes is in `simulated_streams`, memory in `simulated_memory` and `simulated_host`; here they meet. No real
clock, no thread of its own, nothing of asyncio. One lock makes it safe to call from several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch

from aloader.device import accelerators
from aloader.testing.simulated_card import Card, Speeds
from aloader.testing.simulated_device import SimulatedDevice
from aloader.testing.simulated_streams import Event, Stream

Failure = Collection[int] | Callable[[int], Exception | None]


class SimulatedAccelerator(SimulatedDevice):
    """Stands for a GPU in tests: what would go wrong on a card goes wrong here, every time, and says so.

    Give it to a loader as `device=`, and write the training step with its methods: `launch` for what the GPU computes,
    `apply` for what a `device_transform` does, `read` for `.cpu()`, `to` for `tensor.to("cuda")`::

        sim = SimulatedAccelerator()
        async with DataLoader(dataset, batch_size=8, device=sim) as loader:
            async for batch in loader:
                sim.launch("step", 0.010, reads=[batch])  # it takes 10 ms on the device
        sim.check()  # no rule was broken
        print(as_text(sim.trace))  # of aloader.testing.timeline

    Tensors "on the device" are ordinary CPU tensors on memory of its own, whose bytes arrive when the copy has been
    executed: until then they are poison (0xFB: -2.6e36 as float32), or what was there before. So look at them with
    `read` or in the function of a `launch`, which see what a kernel would see at that moment.

    Time is virtual. `now` is the host's clock in seconds: each call costs the host `host_cost` (`passed`: `poll_cost`),
    `advance` is for what it does between them, and `join`, `read` and `synchronize` let it wait. Copies take
    `latency` + bytes / bandwidth and share one engine per direction; kernels of different streams run side by side.

    These mistakes give wrong bytes, as on a card, and a sentence in `violations`:

    - a kernel begins before the copy of what it reads has ended: nobody waited for the event;
    - a device tensor is dropped, and its memory used again, before a stream that reads it is done: no `record_stream`;
    - the source of a running copy is overwritten, unmapped, or dropped and its memory used by somebody else.

    Only a sentence is given where the bytes are right by luck: nothing but these durations orders a kernel behind a
    copy, or a copy behind a kernel; a leased leaf of a loader was dropped under a running copy. The same for memory
    that is page-locked twice, unlocked twice or under a running copy, and for a function that raises.

    What it does not see: page-locked memory that is overwritten after the end of its copy, before the host could know
    of that; writes into device memory by others than `copy`, `to` and `apply`; host memory that kernels read; torch's
    own operations on these tensors, which run at once, where a GPU would do them in turn.

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
        super().__init__(Card(Speeds(h2d, d2h, pageable, latency), refuse_locks, lock_limit), host_cost)
        self.device = torch.device("cpu")
        self.generator = torch.Generator()  #: the device's
        self.copies = 0  #: calls of `copy`
        self.without = set(without)
        self.fail_copies = fail_copies
        self._poll_cost = host_cost if poll_cost is None else poll_cost
        self._fail_open = fail_open

    # -- the protocol ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        if self._fail_open is not None:
            raise RuntimeError(self._fail_open)
        self.opened += 1

    @property
    def side(self) -> Stream:
        return self._side

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
            return self._card.schedule.passed(event)

    def join(self, event: Event) -> None:
        with self._call("join"):
            self._card.schedule.join(event)

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
        """True of device tensors, too, as for CUDA: there is nothing to pin."""
        with self._call("is_pinned", 0.0):
            return self._card.memory.find(tensor) is not None or self._card.host.is_pinned(tensor)

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

    @contextmanager
    def assumed(self) -> Iterator[None]:
        """Inside, this is what torch's current accelerator is taken for."""
        token = accelerators.assumed.set(self)
        try:
            yield
        finally:
            accelerators.assumed.reset(token)

    def _failure(self, number: int) -> Exception | None:
        if callable(self.fail_copies):
            return self.fail_copies(number)
        if number in self.fail_copies:
            return torch.cuda.OutOfMemoryError(f"CUDA out of memory. (simulated: copy {number})")
        return None
