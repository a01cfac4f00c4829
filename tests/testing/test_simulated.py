"""The simulated accelerator: its rules, and above all that each classical mistake gives wrong bytes and is told."""

from __future__ import annotations

import mmap
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from aloader.channel import shared
from aloader.channel.arena import Place
from aloader.channel.leases import Mappings
from aloader.channel.leaves import CODES, tensor_on
from aloader.device.accelerators import LockRefusedError, assumed, is_accelerator
from aloader.testing import SimulatedAccelerator
from aloader.testing.timeline import overlap

N = 1000  # floats of a batch


def opened(**options: Any) -> SimulatedAccelerator:
    sim = SimulatedAccelerator(**options)
    sim.open()
    return sim


@pytest.fixture
def sim() -> SimulatedAccelerator:
    return opened()


def batch(value: float, n: int = N) -> torch.Tensor:
    return torch.full((n,), float(value))


def total(tensor: torch.Tensor) -> float:
    return float(tensor.sum())


class Arena:
    """Page-locked memory of somebody else's, of one slot, which is free when the last tensor on it has died."""

    def __init__(self, sim: SimulatedAccelerator, n: int = N) -> None:
        self.memory = bytearray(4 * n)
        self.free = True
        self.address = np.frombuffer(self.memory, np.uint8).ctypes.data
        sim.lock(self.address, len(self.memory))

    def put(self, value: float) -> torch.Tensor:
        assert self.free
        self.free = False
        owner = np.frombuffer(self.memory, np.float32)
        weakref.finalize(owner, self.__setattr__, "free", True)
        owner[:] = value
        return torch.from_numpy(owner)


def told(sim: SimulatedAccelerator, *parts: str) -> None:
    """That, and only that, has been told."""
    assert len(sim.violations) == len(parts), sim.violations
    for part, violation in zip(parts, sim.violations, strict=True):
        assert part in violation
    if parts:
        with pytest.raises(AssertionError, match=parts[0]):
            sim.check()


# -- the right ways --------------------------------------------------------------------------------------------------


def test_it_is_an_accelerator() -> None:
    sim = SimulatedAccelerator()
    assert is_accelerator(sim)
    assert sim.locks
    assert sim.device == torch.device("cpu")
    assert repr(sim) == "<SimulatedAccelerator at 0.000 ms: 0 operations executed, 0 violations>"


def test_on_one_stream_order_is_enough(sim: SimulatedAccelerator) -> None:
    launches = []
    for value in range(1, 5):
        device = sim.copy(sim.pin(batch(value)))
        launches.append(sim.launch("step", 1e-3, total, [device]))
        del device
    sim.check()
    assert [launch.result for launch in launches] == [N, 2 * N, 3 * N, 4 * N]
    assert (sim.reserved_bytes, sim.peak_bytes) == (4096, 4000)  # the same block for all, and each in its turn
    assert sim.waits == sim.waited == 0


def on_side(sim: SimulatedAccelerator, source: torch.Tensor) -> torch.Tensor:
    """A copy on the side stream, for the current one."""
    with sim.on(sim.side):
        device = sim.copy(source)
        event = sim.record(sim.side)
    sim.wait(sim.current(), event)
    sim.record_stream(device, sim.current())
    return device


def test_on_a_side_stream_with_event_and_record_stream_all_is_right_and_overlaps() -> None:
    sim, launches = opened(h2d=1e8), []
    for value in range(1, 7):
        device = on_side(sim, sim.pin(batch(value)))
        launches.append(sim.launch("step", 1e-4, total, [device]))
        del device
    sim.check()
    assert [launch.result for launch in launches] == [value * N for value in range(1, 7)]
    assert overlap(sim.trace, "side", "compute") > 0.8 * 5 * 50e-6  # seconds: five of the six copies
    assert sim.waits == 0


class Prefetcher:
    """As in timm: the next batch is copied on a stream of its own while the current one is computed on."""

    def __init__(self, sim: SimulatedAccelerator, batches: Iterator[torch.Tensor], *, record: bool = True) -> None:
        self.sim, self.batches, self.record = sim, batches, record
        self.stream = sim.new_stream("prefetch")
        self._load()

    def _load(self) -> None:
        source = next(self.batches, None)
        with self.sim.on(self.stream):
            self.next = None if source is None else self.sim.to(source, non_blocking=True)

    def __iter__(self) -> Iterator[torch.Tensor]:
        while (device := self.next) is not None:
            current = self.sim.current()
            self.sim.wait(current, self.sim.record(self.stream))
            if self.record:
                self.sim.record_stream(device, current)
            self._load()
            yield device
            del device


@pytest.mark.parametrize("record", [True, False])
def test_a_prefetcher_with_a_stream_of_its_own(sim: SimulatedAccelerator, record: bool) -> None:
    launches = []
    for device in Prefetcher(sim, (sim.pin(batch(value)) for value in range(8)), record=record):
        launches.append(sim.launch("step", 1e-3, total, [device]))
        del device
    sim.synchronize()
    right = [launch.result for launch in launches] == [value * N for value in range(8)]
    assert right == (not sim.violations) == record


def test_copies_from_torchs_own_pinned_memory_may_be_dropped_at_once() -> None:
    sim = opened(h2d=1e7)
    devices = [sim.to(sim.pin(batch(value)), non_blocking=True) for value in range(5)]
    assert [total(sim.read(device)) for device in devices] == [value * N for value in range(5)]
    sim.check()


def test_a_pinned_block_is_used_again_once_its_copies_are_done(sim: SimulatedAccelerator) -> None:
    first = sim.pin(batch(1)).data_ptr()
    pinned = sim.pin(batch(2))
    assert pinned.data_ptr() == first
    sim.to(pinned, non_blocking=True)
    del pinned
    assert sim.pin(batch(3)).data_ptr() != first  # its copy runs
    sim.synchronize()
    pinned = [sim.pin(batch(4)), sim.pin(batch(5))]
    assert first in {tensor.data_ptr() for tensor in pinned}


def test_apply_computes_on_the_stream_into_device_memory(sim: SimulatedAccelerator) -> None:
    with sim.on(sim.side):
        device = sim.copy(sim.pin(torch.arange(6, dtype=torch.uint8).reshape(2, 3)))
        scaled = sim.apply(lambda x: x.float() / 2, device)
        event = sim.record(sim.side)
    assert scaled.dtype == torch.float32
    assert scaled.shape == (2, 3)
    assert scaled[0, 0] < -1e30  # nothing is there yet
    sim.wait(sim.current(), event)
    assert sim.read(scaled).tolist() == [[0, 0.5, 1], [1.5, 2, 2.5]]
    sim.check()


def test_read_and_launch_take_nested_batches(sim: SimulatedAccelerator) -> None:
    tree = {"x": sim.to(batch(1)), "rest": [sim.to(batch(2)), "name"], "pair": (sim.to(batch(3)), 7)}
    launch = sim.launch("sum", 1e-3, lambda t: total(t["x"]) + total(t["rest"][0]) + total(t["pair"][0]), [tree])
    back = sim.read(tree)
    assert launch.result == 6 * N
    assert torch.equal(back["rest"][0], batch(2))
    assert back["rest"][1] == "name"
    assert back["pair"][1] == 7
    sim.check()


@pytest.mark.parametrize(
    "source",
    [
        torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.arange(10)[3:7],
        torch.arange(10)[::3],
        torch.zeros(3, 0),
        torch.tensor(5),
        torch.tensor([True, False]),
        torch.rand(4).to(torch.bfloat16),
        torch.rand(4, dtype=torch.complex64),
        torch.rand(3, requires_grad=True),
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)}-{tensor.dtype}",
)
@pytest.mark.parametrize("pinned", [True, False])
def test_dtype_shape_and_layout_survive(sim: SimulatedAccelerator, source: torch.Tensor, pinned: bool) -> None:
    device = sim.copy(sim.pin(source) if pinned else source)
    assert device.stride() == torch.empty_like(source).stride()
    assert device.dtype == source.dtype
    assert torch.equal(sim.read(device), source)
    assert not device.numel() or device.data_ptr() != source.data_ptr()
    sim.check()


def test_what_is_on_the_device_is_not_copied_again(sim: SimulatedAccelerator) -> None:
    device = sim.copy(batch(1))
    assert sim.to(device) is device
    assert sim.is_pinned(device)  # as CUDA's says: there is nothing to pin


# -- the mistakes ----------------------------------------------------------------------------------------------------


def test_without_waiting_for_the_event_the_kernel_reads_poison(sim: SimulatedAccelerator) -> None:
    pinned = sim.pin(batch(1))
    with sim.on(sim.side):
        device = sim.copy(pinned)
    launch = sim.launch("step", 1e-2, total, [device])  # ends long after the copy
    sim.synchronize()
    assert launch.result != N
    told(sim, "read before its copy had finished: 'step' on stream 'compute'")


def test_reading_too_early_is_seen_by_read_too() -> None:
    sim = opened(h2d=1e7)
    with sim.on(sim.side):
        device = sim.copy(sim.pin(batch(1)))
    assert not torch.equal(sim.read(device), batch(1))
    told(sim, "read before its copy had finished")


def test_luck_is_told_though_the_bytes_are_right(sim: SimulatedAccelerator) -> None:
    with sim.on(sim.side):
        device = sim.copy(sim.pin(batch(1)))
    sim.advance(1.0)
    launch = sim.launch("step", 1e-3, total, [device])
    sim.synchronize()
    assert launch.result == N
    told(sim, "nothing but luck orders 'step' on stream 'compute' behind 'copy' on stream 'side'")


def test_an_event_is_no_promise_of_what_is_given_behind_it(sim: SimulatedAccelerator) -> None:
    event = sim.record(sim.side)
    with sim.on(sim.side):
        device = sim.copy(sim.pin(batch(1)))
    sim.advance(1.0)
    sim.wait(sim.current(), event)
    sim.launch("step", 1e-3, total, [device])
    sim.synchronize()
    told(sim, "nothing but luck orders 'step'")


@pytest.mark.parametrize("how", ["join", "passed", "synchronize", "read"])
def test_what_the_host_has_seen_is_no_luck(sim: SimulatedAccelerator, how: str) -> None:
    with sim.on(sim.side):
        device = sim.copy(sim.pin(batch(1)))
        event = sim.record(sim.side)
    if how == "join":
        sim.join(event)
    elif how == "synchronize":
        sim.synchronize(sim.side)
    elif how == "read":
        with sim.on(sim.side):
            sim.read(device)
    else:
        assert not sim.passed(event)
        while not sim.passed(event):
            pass
    assert total(sim.read(device)) == N
    sim.check()


def test_a_source_that_is_overwritten_too_early_arrives_wrong(sim: SimulatedAccelerator) -> None:
    pinned = sim.pin(batch(1))
    device = sim.copy(pinned)
    pinned.fill_(2)
    assert total(sim.read(device)) == 2 * N
    told(sim, "source changed under a running copy: 'copy' on stream 'compute'")


def test_foreign_pinned_memory_that_is_dropped_too_early_arrives_wrong(sim: SimulatedAccelerator) -> None:
    arena = Arena(sim)
    source = arena.put(1)
    assert sim.is_pinned(source)
    device = sim.to(source, non_blocking=True)
    del source  # torch does not know this memory: nothing holds it
    assert arena.free
    arena.put(2)
    assert total(sim.read(device)) == 2 * N
    told(sim, "source changed under a running copy")


def test_foreign_pinned_memory_that_is_kept_until_the_event_arrives_right(sim: SimulatedAccelerator) -> None:
    arena = Arena(sim)
    source = arena.put(1)
    device = sim.to(source, non_blocking=True)
    event = sim.record(sim.current())
    sim.join(event)
    del source
    arena.put(2)
    assert total(sim.read(device)) == N
    sim.check()


def test_a_lease_ends_under_a_copy_of_its_leaf_and_that_is_told() -> None:
    """Though its bytes are still there. The channel's own leases: the simulation must not hold them."""
    sim, ended = opened(), []
    mappings = Mappings(lambda segment, offset: ended.append((segment, offset)))
    mappings.add(0, 8192, shared.create(8192))
    owner = mappings.lease(Place(0, 0, 4 * N))
    source = tensor_on(owner, CODES[torch.float32], (N,)).fill_(1)
    sim.lock(source.data_ptr(), 8192)
    device = sim.copy(source)
    del source, owner
    assert ended == [(0, 0)]
    assert total(sim.read(device)) == N
    told(sim, "lease of the source ended under a running copy")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, memory cannot be looked at without a crash")
def test_memory_has_to_be_unlocked_before_it_is_unmapped(sim: SimulatedAccelerator) -> None:
    memory = mmap.mmap(-1, 1 << 20)
    sim.lock(np.frombuffer(memory, np.uint8).ctypes.data, 1 << 20)
    sim.check()
    memory.close()
    with pytest.raises(AssertionError, match="page-locked memory was unmapped: 1048576 bytes"):
        sim.check()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, memory cannot be looked at without a crash")
def test_a_source_that_is_unmapped_too_early_does_not_crash(sim: SimulatedAccelerator) -> None:
    memory = mmap.mmap(-1, 1 << 20)
    source = torch.from_numpy(np.frombuffer(memory, np.uint8))
    sim.lock(source.data_ptr(), 1 << 20)
    device = sim.copy(source)
    del source
    memory.close()
    assert int(sim.read(device)[0]) == 0xFB
    assert len(sim.violations) == 1  # unmapped, or changed where something else has been mapped there since


@pytest.mark.parametrize("seconds", [1e-2, 1e-6])
def test_without_record_stream_memory_is_used_again_too_early(seconds: float) -> None:
    sim = opened(without={"record_stream"})
    device = on_side(sim, sim.pin(batch(1)))
    launch = sim.launch("step", seconds, total, [device])
    del device
    sim.advance(1e-5)
    after = on_side(sim, sim.pin(batch(2)))
    sim.synchronize()
    if seconds > 1e-3:  # it still ran
        assert launch.result != N
        told(sim, "memory used again under a running kernel: 'step' on stream 'compute'")
    else:
        assert launch.result == N
        told(sim, "nothing but luck orders 'copy' on stream 'side' behind 'step' on stream 'compute'")
    assert total(sim.read(after)) == 2 * N


def test_memory_that_is_being_overwritten_is_poison_not_what_it_was() -> None:
    sim = opened(without={"record_stream"}, h2d=1e6)  # 4 ms a copy
    device = on_side(sim, sim.pin(batch(1)))
    launch = sim.launch("step", 2e-3, lambda x: (float(x.min()), float(x.max())), [device])
    del device
    on_side(sim, sim.pin(batch(2)))  # begins as the step does, and ends after it
    sim.synchronize()
    assert launch.result[0] == launch.result[1] < -1e30
    told(sim, "memory used again under a running kernel")


def test_what_was_luck_is_told_once() -> None:
    sim = opened(without={"record_stream"})
    device = on_side(sim, sim.pin(batch(1)))
    sim.launch("step", 1e-6, total, [device])
    del device
    for value in range(3):
        sim.advance(1e-3)
        with sim.on(sim.side):
            sim.copy(sim.pin(batch(value)))
    sim.synchronize()
    told(sim, "nothing but luck")


def test_instead_of_record_stream_the_copying_stream_may_wait(sim: SimulatedAccelerator) -> None:
    sim.without.add("record_stream")
    launches = []
    for value in range(5):
        sim.wait(sim.side, sim.record(sim.current()))
        device = on_side(sim, sim.pin(batch(value)))
        launches.append(sim.launch("step", 1e-3, total, [device]))
        del device
    sim.check()
    assert [launch.result for launch in launches] == [value * N for value in range(5)]


def test_a_kernel_that_fails_is_told_even_if_nobody_asks_for_its_result(sim: SimulatedAccelerator) -> None:
    launch = sim.launch("step", 1e-3, lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="'step' on stream 'compute' has not been executed yet"):
        launch.result  # noqa: B018
    sim.synchronize()
    with pytest.raises(ZeroDivisionError):
        launch.result  # noqa: B018
    told(sim, "'step' on stream 'compute' failed: ZeroDivisionError")


def test_a_kernel_keeps_nothing_once_it_has_been_executed(sim: SimulatedAccelerator) -> None:
    host = batch(1)
    launch, kept = sim.launch("step", 1e-3, total, [host]), weakref.ref(host.untyped_storage())
    del host
    sim.synchronize()
    assert launch.result == N
    assert kept() is None


def test_a_pinned_copy_belongs_to_no_graph(sim: SimulatedAccelerator) -> None:
    assert sim.pin(batch(1).requires_grad_()).is_leaf


def test_a_check_in_the_middle_changes_nothing(sim: SimulatedAccelerator) -> None:
    with sim.on(sim.side):
        device = sim.copy(sim.pin(batch(1)))
    sim.check(synchronize=False)
    assert not sim.trace
    sim.launch("step", 1e-3, total, [device])  # nobody waited, and the check did not either
    sim.check(synchronize=False)
    with pytest.raises(AssertionError, match="read before"):
        sim.check()


def test_a_kernel_cannot_call_the_accelerator(sim: SimulatedAccelerator) -> None:
    sim.launch("step", 1e-3, sim.synchronize)
    sim.synchronize()
    told(sim, "only the host may")


# -- time ------------------------------------------------------------------------------------------------------------


def test_copies_of_one_direction_take_turns_and_kernels_do_not(sim: SimulatedAccelerator) -> None:
    other = sim.new_stream("other")
    pinned = sim.pin(batch(1))
    for stream in (sim.side, other):
        with sim.on(stream):
            sim.copy(pinned)
            sim.launch("work", 1.0)
    sim.synchronize()
    assert overlap([span for span in sim.trace if span.nbytes], "side", "other") == 0
    assert overlap([span for span in sim.trace if not span.nbytes], "side", "other") > 0.99


def test_a_copy_that_is_ready_does_not_queue_behind_one_that_waits(sim: SimulatedAccelerator) -> None:
    pinned = sim.pin(batch(1))
    sim.launch("long", 1.0)
    sim.copy(pinned)  # in a second
    with sim.on(sim.side):
        sim.copy(pinned)
        sim.join(sim.record(sim.side))
    assert sim.now < 1e-3


def test_the_times_of_a_copy_are_latency_and_bandwidth() -> None:
    sim = opened(h2d=4e3, pageable=1e3, latency=0.5, host_cost=0.0)
    pinned = sim.pin(batch(1))
    sim.copy(pinned)
    assert sim.now == 0
    sim.synchronize()
    assert sim.now == pytest.approx(1.5)
    assert sim.trace[0].end - sim.trace[0].begin == pytest.approx(1.5)


def test_from_pageable_memory_the_host_waits_for_the_stream_and_the_copy() -> None:
    sim = opened(pageable=4e3, latency=0.5, host_cost=0.0)
    sim.launch("step", 2.0)
    source = batch(1)
    device = sim.to(source, non_blocking=True)
    source.fill_(7)  # it has been read
    assert (sim.waits, sim.waited) == (1, pytest.approx(3.5))
    assert sim.now == pytest.approx(3.5)
    assert total(device) == N
    sim.check()


def test_a_blocking_copy_from_pinned_memory_waits_too(sim: SimulatedAccelerator) -> None:
    assert total(sim.to(sim.pin(batch(3)))) == 3 * N
    assert sim.waits == 1


def test_each_call_costs_the_host_a_little_so_that_polling_ends() -> None:
    sim = opened(host_cost=1e-6, poll_cost=1e-3)
    sim.launch("step", 0.1)
    event = sim.record(sim.current())
    polls = 0
    while not sim.passed(event):
        polls += 1
    assert 90 < polls < 101
    sim.advance(2.0)
    assert sim.now == pytest.approx(2.1, abs=0.01)


def test_an_event_of_an_idle_stream_has_passed(sim: SimulatedAccelerator) -> None:
    assert sim.passed(sim.record(sim.side))
    event = sim.record(sim.side)
    sim.launch("step", 1.0)
    sim.join(event)
    assert sim.now < 0.1


def test_each_thread_has_a_current_stream(sim: SimulatedAccelerator) -> None:
    seen = []
    with sim.on(sim.side):
        with sim.on(sim.new_stream("inner")):
            assert sim.current().name == "inner"
        assert sim.current() is sim.side
        thread = threading.Thread(target=lambda: seen.append(sim.current()))
        thread.start()
        thread.join()
    assert [stream.name for stream in seen] == ["compute"]
    assert sim.current() is seen[0]


def test_several_threads_may_call_it() -> None:
    sim = opened()
    results: list[Any] = []

    def work(value: int) -> None:
        stream = sim.new_stream(str(value))
        with sim.on(stream):
            for _ in range(30):
                results.append((value, total(sim.read(sim.copy(sim.pin(batch(value)))))))

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 120
    assert all(result == value * N for value, result in results)
    sim.check()


# -- memory ----------------------------------------------------------------------------------------------------------


def test_a_dropped_block_goes_back_to_the_stream_that_it_was_allocated_on(sim: SimulatedAccelerator) -> None:
    pinned = sim.pin(batch(1))
    first = sim.copy(pinned).data_ptr()
    with sim.on(sim.side):
        other = sim.copy(pinned)
        assert other.data_ptr() != first
    assert sim.copy(pinned).data_ptr() == first
    assert sim.reserved_bytes == 2 * 4096


def test_memory_is_held_as_long_as_any_view_of_it(sim: SimulatedAccelerator) -> None:
    device = sim.copy(batch(1))
    views: list[Any] = [device[3:], device.view(10, -1).numpy(), device.detach().requires_grad_()]
    views.append(views[-1].square().sum())  # whose graph holds the input
    del device
    while views:
        assert sim.resident_bytes == 4000
        views.pop(0)
    assert sim.resident_bytes == 0
    assert sim.peak_bytes == 4000
    sim.copy(batch(1, 1))
    assert sim.peak_bytes == 4000


def test_recorded_memory_counts_until_the_other_stream_is_done(sim: SimulatedAccelerator) -> None:
    device = on_side(sim, sim.pin(batch(1)))
    sim.launch("step", 1e-2, None, [device])
    del device
    assert sim.resident_bytes == 4000
    on_side(sim, sim.pin(batch(2)))
    assert (sim.peak_bytes, sim.reserved_bytes) == (2 * 4000, 2 * 4096)
    sim.advance(0.1)
    assert sim.resident_bytes == 0


def test_memory_waits_for_what_was_given_before_it_was_dropped_and_no_longer(sim: SimulatedAccelerator) -> None:
    device = on_side(sim, sim.pin(batch(1)))
    sim.launch("step", 1e-3, None, [device])
    address = device.data_ptr()
    del device
    sim.launch("long", 1.0)
    sim.advance(2e-3)
    assert sim.resident_bytes == 0
    assert on_side(sim, sim.pin(batch(2))).data_ptr() == address


def test_to_record_the_stream_that_it_was_allocated_on_changes_nothing(sim: SimulatedAccelerator) -> None:
    device = sim.copy(sim.pin(batch(1)))
    address = device.data_ptr()
    sim.record_stream(device, sim.current())
    sim.launch("step", 1.0, None, [device])
    del device
    assert sim.copy(sim.pin(batch(2))).data_ptr() == address


def test_the_smallest_block_that_is_large_enough_is_used_again(sim: SimulatedAccelerator) -> None:
    devices = [sim.copy(batch(1, n)) for n in (1500, 1000, 1200)]
    addresses = [device.data_ptr() for device in devices]
    del devices
    assert sim.copy(batch(1, 900)).data_ptr() == addresses[1]


def test_a_block_serves_what_needs_more_than_half_of_it(sim: SimulatedAccelerator) -> None:
    big = sim.copy(batch(1, 1000)).data_ptr()
    assert sim.copy(batch(1, 400)).data_ptr() != big
    assert sim.copy(batch(1, 600)).data_ptr() == big


def test_locks_are_counted_and_refused() -> None:
    sim = opened(lock_limit=100)
    sim.lock(1000, 60)
    with pytest.raises(LockRefusedError, match="limit is 100"):
        sim.lock(2000, 60)
    sim.unlock(1000)
    sim.lock(2000, 60)
    assert sim.locked == {2000: 60}
    assert sim.locked_calls == [(1000, 60), (2000, 60), (2000, 60)]
    sim.check()
    with pytest.raises(LockRefusedError, match="not permitted here"):
        opened(refuse_locks="not permitted here").lock(1000, 60)


def test_locking_and_unlocking_twice_is_told(sim: SimulatedAccelerator) -> None:
    sim.lock(1000, 100)
    for address in (1000, 950, 1099):
        with pytest.raises(LockRefusedError, match="page-locked already"):
            sim.lock(address, 60)
    sim.lock(1100, 10)
    sim.unlock(1000)
    with pytest.raises(LockRefusedError, match="not page-locked"):
        sim.unlock(1000)
    told(sim, *["page-locked already"] * 3, "not page-locked")


def test_unlocking_under_a_running_copy_is_told(sim: SimulatedAccelerator) -> None:
    arena = Arena(sim)
    device = sim.copy(arena.put(1))
    with pytest.raises(LockRefusedError):
        sim.unlock(arena.address)
    told(sim, "unlocked memory under a running copy: 'copy' on stream 'compute'")
    assert total(sim.read(device)) == N
    sim.unlock(arena.address)
    assert sim.locked == {}


def test_a_copy_may_not_cross_the_border_of_two_locked_ranges(sim: SimulatedAccelerator) -> None:
    tensor = batch(1)
    sim.lock(tensor.data_ptr(), 2000)
    sim.lock(tensor.data_ptr() + 2000, 2000)
    assert sim.is_pinned(tensor)
    with pytest.raises(RuntimeError, match="invalid argument"):
        sim.copy(tensor)
    assert total(sim.read(sim.copy(tensor[:500]))) == 500
    assert total(sim.read(sim.copy(tensor[500:]))) == 500
    assert sim.waits == 0


# -- the rest --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda sim: sim.copy(batch(1)),
        lambda sim: sim.pin(batch(1)),
        lambda sim: sim.record(sim.side),
        lambda sim: sim.current(),
        lambda sim: sim.on(sim.side).__enter__(),
        lambda sim: sim.lock(0, 1),
        lambda sim: sim.random_state(),
        lambda sim: sim.is_pinned(batch(1)),
    ],
)
def test_before_open_nothing_can_be_called(call: Callable[[SimulatedAccelerator], Any]) -> None:
    sim = SimulatedAccelerator()
    with pytest.raises(RuntimeError, match=r"before open\(\)"):
        call(sim)
    sim.open()
    call(sim)


def test_open_may_be_repeated_and_may_fail() -> None:
    sim = opened()
    sim.open()
    assert sim.opened == 2
    with pytest.raises(RuntimeError, match="no driver"):
        opened(fail_open="no driver")


def test_chosen_copies_fail() -> None:
    sim = opened(fail_copies={2})
    sim.copy(batch(1))
    with pytest.raises(torch.cuda.OutOfMemoryError, match="copy 2"):
        sim.copy(batch(1))
    sim.copy(batch(1))
    sim.fail_copies = lambda number: KeyError(number) if number == 4 else None
    with pytest.raises(KeyError):
        sim.copy(batch(1))
    sim.copy(batch(1))
    assert sim.copies == 5
    assert len(sim.trace) == 3


def test_its_random_generator_is_its_own(sim: SimulatedAccelerator) -> None:
    before = torch.get_rng_state()
    sim.seed(7)
    state = sim.random_state()
    drawn = torch.rand(3, generator=sim.generator)
    sim.set_random_state(state)
    assert torch.equal(torch.rand(3, generator=sim.generator), drawn)
    assert torch.equal(torch.get_rng_state(), before)


def test_it_can_stand_for_torchs_current_accelerator(sim: SimulatedAccelerator) -> None:
    with sim.assumed():
        assert assumed.get() is sim
    assert assumed.get() is None


def test_copies_can_be_named(sim: SimulatedAccelerator) -> None:
    with sim.named("batch 3"):
        sim.copy(batch(1))
    sim.copy(batch(1))
    assert [span.name for span in sim.trace] == ["batch 3", "copy"]


def test_it_dies_with_its_last_user() -> None:
    sim = opened()
    device = sim.copy(batch(5))
    gone = weakref.ref(sim)
    del sim
    assert gone() is None
    assert total(device) == 5 * N
