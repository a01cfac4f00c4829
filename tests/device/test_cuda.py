"""CUDA: what is wrong is said with a remedy, a refused lock leaves nothing behind; and on a device, that it works."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from typing import Any

import pytest
import torch

from aloader.device import cuda as module_of_cuda
from aloader.device.accelerators import LockRefusedError, is_accelerator
from aloader.device.cuda import Cuda
from aloader.device.runtime import Runtime, loaded, wake
from tests.device.fakes import FakeCuda, FakeCudart, FakeStream

PAGE = mmap.PAGESIZE


def cuda(index: int = 0, *, count: int = 1, error: str = "", cudart: FakeCudart | None = None) -> Any:
    """The class, over torch's module as it would be with so many devices."""
    calls = cudart or FakeCudart()
    module = FakeCuda(count, error, calls)
    runtime = Runtime(module.calls, calls.kernel, [(object(), "hip"), (calls, "cuda")])
    made = Cuda(torch.device("cuda", index), cuda=module, runtime=lambda: runtime)
    made.module, made.calls = module, calls  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    ("index", "count", "error", "said"),
    [
        (0, 0, "Found no NVIDIA driver.\nMore lines", "torch says: Found no NVIDIA driver. Look at .nvidia-smi"),
        (0, 0, "No CUDA GPUs are available", "No CUDA GPUs are available. Look at .*CUDA_VISIBLE_DEVICES"),
        (0, 0, "", "torch finds no CUDA device"),
        (0, 1, "Cannot re-initialize CUDA in forked subprocess.", "Cannot re-initialize CUDA"),
        (1, 1, "", "the only one is cuda:0"),
        (5, 4, "", "there are cuda:0 to cuda:3, counted among those that CUDA_VISIBLE_DEVICES leaves"),
    ],
)
def test_a_device_that_is_not_there_is_refused_with_the_remedy(index, count, error, said):
    accelerator = cuda(index, count=count, error=error)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=said) as caught:
            accelerator.open()
        assert str(caught.value).startswith(f'device="cuda:{index}" cannot be used: ')
        assert 'device="cpu"' in str(caught.value)
        assert "More lines" not in str(caught.value)
    assert not accelerator.module.contexts


def test_what_this_machines_torch_says_is_told():
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(RuntimeError, match=r'device="cuda:0" cannot be used: torch says: \w+'):
        Cuda(torch.device("cuda:0")).open()


def test_opening_makes_one_stream_on_its_own_device_alone():
    accelerator = cuda(1, count=2)
    assert accelerator.side is None
    assert is_accelerator(accelerator)
    assert not accelerator.module.initialised
    accelerator.open()
    side = accelerator.side
    accelerator.open()
    assert accelerator.side is side is not None
    accelerator.lock(PAGE, PAGE)
    accelerator.unlock(PAGE)
    assert accelerator.module.contexts == {1}
    assert accelerator.module.now == 0


def test_streams_and_events_are_its_own_devices_and_only_who_joins_waits():
    accelerator, stream = cuda(1, count=2), FakeStream()
    accelerator.open()
    assert accelerator.current() == ("current", 1)
    with accelerator.on(stream):
        assert accelerator.module.now == 1
    assert accelerator.module.contexts == {1}
    event = accelerator.record(stream)
    assert event.blocking, "who joins it would spin"
    accelerator.wait(stream, event)
    assert stream.waits_for == [event]
    assert not accelerator.passed(event)
    assert event.did == [("record", stream)]
    accelerator.join(event)
    assert event.did[1:] == ["synchronize"]
    assert accelerator.module.contexts == {1}, "there is another one now"
    assert accelerator.calls.mode == 0, "this thread minds no captures any more"


def test_an_event_is_asked_for_and_waited_for_on_its_own_device_in_any_thread():
    """Torch does not see to that, and the current device of a thread is the first one until it is told otherwise."""
    accelerator = cuda(1, count=2)
    accelerator.open()
    event = accelerator.record(FakeStream())
    for ask in accelerator.passed, accelerator.join:
        accelerator.module.contexts.clear()
        ask(event)
        assert accelerator.module.contexts == {1}


def test_a_copy_knows_of_a_border_before_what_ends_there_counts_as_pinned():
    accelerator, tensor, borders = cuda(), torch.zeros(2 * PAGE, dtype=torch.uint8), []
    accelerator.lock(tensor.data_ptr() + PAGE, PAGE)
    accelerator.calls.called = lambda: borders.append(accelerator._locked.borders(tensor))
    accelerator.lock(tensor.data_ptr(), PAGE)
    accelerator.unlock(tensor.data_ptr())
    assert borders == [[PAGE], [PAGE]]


def test_a_copy_stops_where_what_was_locked_by_itself_ends(monkeypatch):
    accelerator, borders = cuda(), []
    accelerator.device = torch.device("meta")  # a copy to it is none, on any machine
    monkeypatch.setattr(module_of_cuda, "copy_in_pieces", lambda made, tensor, found: borders.append(found))
    tensor = torch.zeros(3 * PAGE, dtype=torch.uint8)
    for at in (0, PAGE, 2 * PAGE):
        accelerator.lock(tensor.data_ptr() + at, PAGE)
    accelerator.copy(tensor)
    accelerator.unlock(tensor.data_ptr())
    accelerator.copy(tensor)
    assert borders == [[PAGE, 2 * PAGE], [2 * PAGE]]


@pytest.mark.parametrize("wants", [False, True])
def test_a_copy_requires_grad_as_its_source_does_and_does_not_belong_to_its_graph(wants):
    accelerator = cuda()
    accelerator.device = torch.device("meta")
    made = accelerator.copy(torch.ones(2, requires_grad=wants))
    assert made.is_leaf
    assert made.requires_grad is wants


def test_it_needs_an_index_for_it_never_chooses_one():
    for wrong in ("cuda", "cpu"):
        with pytest.raises(ValueError, match="with its index"):
            Cuda(torch.device(wrong))


class Unsure(torch.Tensor):
    """A subclass that has not heard of pinning."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.is_pinned:
            raise NotImplementedError("is_pinned")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_what_cannot_be_pinned_is_not_to_be_pinned():
    accelerator = cuda()
    assert accelerator.is_pinned(torch.ones(1, device="meta"))
    assert accelerator.is_pinned(torch.ones(1).as_subclass(Unsure))
    assert not accelerator.is_pinned(torch.ones(1))
    assert not accelerator.is_pinned(torch.eye(2).to_sparse())


class Moves(torch.Tensor):
    """A subclass that notes how it is moved."""

    said: list[Any]

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.to:
            cls.said.append((*args[1:], kwargs))
            return args[0]
        return super().__torch_function__(func, types, args, kwargs or {})


def test_what_copies_itself_is_not_waited_for():
    accelerator, Moves.said = cuda(), []
    tensor = torch.ones(1).as_subclass(Moves)
    assert accelerator.copy(tensor) is tensor
    assert Moves.said == [(torch.device("cuda:0"), {"non_blocking": True})]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, dtype=torch.complex64).conj().imag,
        torch.eye(2).to_sparse(),
    ],
    ids=["conjugated", "negated", "sparse"],
)
def test_bytes_are_copied_of_what_is_nothing_but_its_bytes(tensor, monkeypatch):
    """Torch copies the others itself: it knows what their bytes mean."""
    monkeypatch.setattr(module_of_cuda, "copy_in_pieces", lambda *args: pytest.fail("copied as bytes"))
    accelerator = cuda()
    accelerator.device = torch.device("meta")
    assert accelerator.copy(tensor).is_meta


class Part:
    """A tensor that another is made of, on a device or not."""

    def __init__(self, is_cuda: bool) -> None:
        self.is_cuda = is_cuda
        self.used_by: list[Any] = []

    def record_stream(self, stream: Any) -> None:
        self.used_by.append(stream)


def test_all_that_a_tensor_is_made_of_is_kept_from_being_used_again(monkeypatch):
    """A sparse one cannot be recorded itself."""
    parts = [Part(True), Part(False), Part(True)]
    monkeypatch.setattr(module_of_cuda, "memory_of", lambda tensor: parts)
    cuda().record_stream(torch.eye(2).to_sparse(), "mine")
    assert [part.used_by for part in parts] == [["mine"], [], ["mine"]]


def test_the_generator_is_its_own_devices():
    accelerator = cuda(1, count=2)
    generators = accelerator.module.default_generators = [torch.Generator() for _ in range(2)]
    accelerator.seed(7)
    assert [generator.initial_seed() == 7 for generator in generators] == [False, True]


# -- page-locking -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [1, 2, 712])
@pytest.mark.parametrize("hidden", [False, True])
def test_a_refused_lock_says_why_and_leaves_no_error_for_others(code, hidden):
    accelerator = cuda(cudart=FakeCudart(refuses=code, hidden=hidden))
    with pytest.raises(LockRefusedError, match=f"{12 * PAGE} bytes: .* \\(error {code}\\)") as caught:
        accelerator.lock(PAGE, 12 * PAGE)
    assert "ulimit -l unlimited" in str(caught.value)
    assert "memlock=-1" in str(caught.value)
    accelerator.calls.kernel()  # of the user's, which has nothing to do with it
    assert not accelerator.calls.registered


def test_memory_is_locked_for_every_context_and_unlocked():
    accelerator = cuda()
    accelerator.lock(PAGE, 2 * PAGE)
    assert accelerator.calls.registered == {PAGE: (2 * PAGE, 1)}
    with pytest.raises(LockRefusedError, match="already mapped"):
        accelerator.lock(PAGE, 2 * PAGE)
    accelerator.unlock(PAGE)
    assert not accelerator.calls.registered
    with pytest.raises(RuntimeError, match=r"does not unlock the memory at 0x1000: .*\(error 713\)"):
        accelerator.unlock(PAGE)
    accelerator.calls.kernel()


def test_while_the_interpreter_ends_nothing_is_unlocked(monkeypatch):
    accelerator = cuda()
    accelerator.lock(PAGE, PAGE)
    monkeypatch.setattr(sys, "is_finalizing", lambda: True)
    accelerator.unlock(PAGE)
    assert accelerator.calls.registered


def test_a_runtime_that_is_going_has_unlocked_everything():
    calls = FakeCudart()
    calls.cudaHostUnregister = lambda address: 4  # type: ignore[method-assign, assignment, return-value]
    assert Runtime(calls, calls.kernel, []).unregister(PAGE) is None


def test_the_errors_of_all_runtimes_are_taken_away():
    calls, others = FakeCudart(refuses=2), FakeCudart()
    others.pending = 2
    runtime = Runtime(calls, pytest.fail, [(calls, "cuda"), (others, "cuda")])
    with runtime.unhindered():
        assert runtime.register(PAGE, PAGE, 1) == "out of memory (error 2)"
    assert others.pending == calls.pending == 0


def test_the_runtimes_own_library_is_found_where_it_is_loaded(tmp_path):
    maps = tmp_path / "maps"
    lines = [
        "7f00-7f10 r-xp 00000000 00:00 0 \n",
        "7f00-7f10 r-xp 00000000 08:01 12   /usr/lib/libc.so.6\n",
        "7f00-7f10 r-xp 00000000 08:01 12   /opt/a folder/libcudart.so.12 (deleted)\n",
    ]
    maps.write_text("".join(lines))
    assert loaded(str(maps)) == []  # it cannot be loaded
    assert loaded(str(tmp_path / "none")) == []
    if not torch.cuda.is_available():
        assert loaded() == []


class FakeLibrary:
    """A runtime, as ctypes has it. answer: the code of choosing a device."""

    def __init__(self, answer: int = 0) -> None:
        self.did: list[tuple[str, Any]] = []
        self.threads: set[int] = set()
        self._answer = answer

    def cudaSetDevice(self, index: int) -> int:
        self.threads.add(threading.get_ident())
        self.did.append(("choose", index))
        return self._answer

    def cudaFree(self, address: Any) -> int:
        self.did.append(("free", address))
        return 0


def test_a_context_is_made_by_the_runtime_in_a_thread_of_its_own(monkeypatch):
    """By ctypes, which lets the GIL go: torch holds it while a context is made, and a loop would stand still."""
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    wake(3, [])
    assert "CUDA_MODULE_LOADING" not in os.environ
    found, broken = FakeLibrary(), FakeLibrary(answer=100)
    wake(3, [(found, "cuda"), (broken, "cuda"), (object(), "hip")])
    assert found.did == [("choose", 3), ("free", None)]
    assert broken.did == [("choose", 3)]
    assert threading.get_ident() not in found.threads
    assert os.environ["CUDA_MODULE_LOADING"] == "LAZY"  # by torch's own rule, before there is a context


def test_opening_wakes_the_device_before_torch_looks_for_it():
    module, woken = FakeCuda(count=2), []
    made = Cuda(torch.device("cuda:1"), cuda=module, waking=lambda index: woken.append((index, module.initialised)))
    made.open()
    made.open()
    assert woken == [(1, 0)]


# -- on a device ------------------------------------------------------------------------------------------------------


@pytest.fixture
def device() -> Any:
    accelerator = Cuda(torch.device("cuda", torch.cuda.device_count() - 1))
    accelerator.open()
    return accelerator


@pytest.fixture
def pages() -> Any:
    """Memory as an arena's, page-aligned: address and tensor."""
    memory = mmap.mmap(-1, 64 * PAGE)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    tensor.copy_(torch.arange(len(tensor)) % 251)
    return tensor


def copied(device: Cuda, tensor: torch.Tensor) -> torch.Tensor:
    with device.on(device.side):
        made = device.copy(tensor)
    event = device.record(device.side)
    device.wait(device.current(), event)
    device.record_stream(made, device.current())
    device.join(event)
    assert device.passed(event)
    return made


@pytest.mark.gpu
def test_locked_memory_is_pinned_until_it_is_unlocked(device, pages):
    assert not device.is_pinned(pages)
    device.lock(pages.data_ptr(), pages.nbytes)
    try:
        assert device.is_pinned(pages)
        assert device.is_pinned(pages[PAGE:])
        assert torch.equal(copied(device, pages).cpu(), pages)
        pinned = device.pin(pages)
        assert device.is_pinned(pinned)
        assert pinned.data_ptr() != pages.data_ptr()
        assert torch.equal(pinned, pages)
    finally:
        device.unlock(pages.data_ptr())
    assert not device.is_pinned(pages)


@pytest.mark.gpu
def test_a_copy_from_ranges_that_were_locked_each_by_itself(device, pages):
    half = pages.nbytes // 2
    device.lock(pages.data_ptr(), half)
    device.lock(pages.data_ptr() + half, half)
    try:
        assert torch.equal(copied(device, pages).cpu(), pages)
        across = pages[half - 8 : half + 8].view(torch.float32)
        assert torch.equal(copied(device, across).cpu(), across)
    finally:
        device.unlock(pages.data_ptr())
        device.unlock(pages.data_ptr() + half)


@pytest.mark.gpu
def test_a_refused_lock_is_drained_on_the_device(device, pages):
    device.lock(pages.data_ptr(), pages.nbytes)
    try:
        with pytest.raises(LockRefusedError, match="error 712"):
            device.lock(pages.data_ptr(), pages.nbytes)
        torch.zeros(1, device=device.device).add_(1)  # raises what is pending
    finally:
        device.unlock(pages.data_ptr())


@pytest.mark.gpu
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(3.0).expand(2, 3),
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.ones(2, requires_grad=True),
        torch.eye(3).to_sparse(),
        torch.zeros(0, 3),
        torch.tensor(1),
    ],
    ids=["transposed", "expanded", "channels last", "requires grad", "sparse", "empty", "scalar"],
)
def test_every_tensor_arrives_as_it_is(device, tensor):
    made = copied(device, tensor)
    assert made.device == device.device
    assert made.requires_grad == tensor.requires_grad
    assert made.is_leaf
    assert made.layout == tensor.layout
    torch.testing.assert_close(made.cpu(), tensor)
    assert device.copy(made) is made


@pytest.mark.gpu
def test_the_devices_generator_is_kept_and_put_back(device):
    before = device.random_state()
    expected = torch.rand(3, device=device.device)
    device.seed(2**64 - 1)
    seeded = torch.rand(3, device=device.device)
    device.seed(2**64 - 1)
    assert torch.equal(torch.rand(3, device=device.device), seeded)
    device.set_random_state(before)
    assert torch.equal(torch.rand(3, device=device.device), expected)


@pytest.mark.gpu
@pytest.mark.slow
def test_the_first_device_is_left_alone_where_another_is_asked_for(warmth):
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    code = """
import threading
import torch
from aloader.device.cuda import Cuda
device = Cuda(torch.device("cuda:1"))
device.open()
with device.on(device.side):
    made = device.copy(device.pin(torch.ones(8)))
waiting = threading.Thread(target=lambda: device.join(device.record(device.side)))
waiting.start()
waiting.join()
assert device.is_pinned(device.pin(torch.ones(8)))
device.random_state()
assert not torch._C._cuda_hasPrimaryContext(0), "a context on cuda:0"
assert torch._C._cuda_hasPrimaryContext(1)
"""
    warmth.subprocess.run([sys.executable, "-c", code], check=True)
