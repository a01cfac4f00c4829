"""A sample's generators: their states go away and come back whole, and each step of a coroutine has its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, StackDataset, Subset

from aloader.channel import states
from aloader.channel.messages import Batch, Ticket
from aloader.channel.states import Generators, State, Watch
from aloader.worker import inline
from aloader.worker.generators import Own, Seeding, driven, kept
from aloader.worker.kinds import fetches_together, is_coroutine_function
from tests.loader.draws import AsyncDrawing, Drawing, Together, drawn, left_alone
from tests.loader.samples import AsyncNumbers, Numbers, as_list
from tests.worker.bench_kit import bench_of, in_a_thread

pytestmark = pytest.mark.usefixtures("nothing_left")


@pytest.fixture(autouse=True)
def as_they_were() -> Iterator[None]:
    """This process's generators, afterwards."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(before[0])
    np.random.set_state(before[1])
    torch.set_rng_state(before[2])


#: What may have been drawn before states are taken: each generator's position, and deviates that it keeps or not.
BEFORE: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "one of each": drawn,
    "two of each": lambda: (drawn(), drawn()),
    "a deviate of numpy's": np.random.randn,
    "a deviate of Python's": lambda: random.gauss(0, 1),
    "deviates of torch's": lambda: torch.randn(3),
    "just a block of words": lambda: (np.random.bytes(4 * 624), random.getrandbits(32 * 624)),
}


@pytest.mark.parametrize("way", ["here", "as bytes"])
@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_states_come_back_whole(before, way):
    generators = Generators()
    generators.seed(2**64 - 1)
    before()
    state = generators.get()
    expected = [drawn(), drawn()]  # also: `get` has changed nothing
    generators.seed(5)
    before()
    drawn()
    generators.put(state if way == "here" else State.unpacked(state.packed()))
    assert [drawn(), drawn()] == expected
    generators.put(state)
    random_state, numpy_state = random.getstate(), np.random.get_state()
    generators.put(generators.get())
    assert random.getstate() == random_state
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), numpy_state, strict=True))


def test_where_pythons_words_are_not_where_they_are_looked_for_it_is_asked_for_them(monkeypatch):
    fast = Generators()
    monkeypatch.setattr(states, "_memory_of", lambda generator: None)
    slow = Generators()
    fast.seed(3)
    random.gauss(0, 1)
    state = slow.get()
    assert state.python == fast.get().python
    assert state.python_deviate == fast.get().python_deviate is not None
    expected = drawn()
    slow.put(state)
    assert drawn() == expected


def test_a_bit_generator_of_the_users_is_left_alone():
    before = np.random.get_bit_generator()
    generators = Generators()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))
        state = generators.get()
        assert state.numpy == b""
        expected = np.random.PCG64(3).state
        generators.put(State.unpacked(state.packed()))
        assert np.random.get_bit_generator().state == expected
        with pytest.raises(TypeError, match="MT19937"):
            generators.seed(3)
    finally:
        np.random.set_bit_generator(before)
    assert len(generators.get().numpy) == 4 * 625


@pytest.mark.parametrize("draw", [random.random, np.random.rand, lambda: torch.rand(()), np.random.randn, drawn])
def test_a_watch_sees_what_is_drawn(draw):
    generators = Generators()
    generators.seed(1)
    watch = Watch(generators)
    assert watch.changed() is not None
    assert watch.changed() is None
    for _ in range(3):  # the second deviate of numpy's is drawn without a word
        draw()
        state = watch.changed()
        assert state is not None
        expected = drawn()
        generators.put(state)
        assert drawn() == expected
        generators.put(state)


def test_a_watch_sees_seeding():
    generators = Generators()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        generators.seed(1)
        watch = Watch(generators)
        watch.changed()
        seed(9)
        assert watch.changed() is not None


async def walks(numbers: list[Any], steps: int) -> None:
    for _ in range(steps):
        numbers.append(drawn())
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.mark.parametrize("shared", [True, False])
def test_coroutines_that_take_turns_draw_what_each_would_draw_alone(shared):
    seeding = Seeding(Generators(shared=shared), 17, list(range(5)))

    async def alone() -> list[Any]:
        found: list[Any] = []
        await driven(seeding.own(3), walks(found, 6))
        return found

    async def among_others() -> list[Any]:
        found: list[list[Any]] = [[] for _ in range(5)]
        others = (driven(seeding.own(n), walks(found[n], 6 - n % 2)) for n in range(5))
        await asyncio.gather(*(_task(other) for other in others))
        return found[3]

    if shared:
        expected = left_alone(lambda: asyncio.run(alone()))
        found = left_alone(lambda: asyncio.run(among_others()))
        assert found[:5] == expected[:5]
    else:
        assert asyncio.run(among_others())[:5] == asyncio.run(alone())[:5]


async def _task(awaitable: Any) -> Any:
    return await awaitable


@pytest.mark.asyncio
async def test_what_others_draw_between_steps_changes_nothing():
    def own() -> Own:
        return Seeding(Generators(), 3, []).own(1)

    expected: list[Any] = []
    await driven(own(), walks(expected, 3))
    found: list[Any] = []
    walking = asyncio.ensure_future(_task(driven(own(), walks(found, 3))))
    while not walking.done():
        np.random.randn()
        drawn()
        await asyncio.sleep(0)
    assert found == expected


@pytest.mark.asyncio
async def test_a_step_that_fails_and_a_cancellation_pass_through():
    left: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            left.append("left")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise KeyError("why")

    seeding = Seeding(Generators(shared=True), 3, [])
    with pytest.raises(KeyError, match="why"):
        await driven(seeding.own(1), fails())
    task = asyncio.ensure_future(_task(driven(seeding.own(1), waits())))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left == ["left"]


def test_kept_generators_are_as_they_were_also_after_an_error():
    generators = Generators(shared=True)

    def fail() -> None:
        with kept(generators):
            generators.seed(3)
            raise KeyError

    def act() -> None:
        with pytest.raises(KeyError):
            fail()

    left_alone(act)


@pytest.mark.parametrize("indices", [[4, 5], (4, 5), {4: 0, 5: 0}, range(4, 6), np.array([4, 5])], ids=repr)
def test_samples_are_known_by_their_indices_whatever_these_come_in(indices):
    seeding = Seeding.of(None, Ticket(0, 0, 3, indices, 0, 9), True)
    assert seeding is not None
    numbers = [seeding.own(name).rng().random() for name in seeding.names]
    assert numbers == [Seeding(None, 9, []).own(n).rng().random() for n in (4, 5)]


def test_a_batch_whose_indices_can_be_read_once_is_known_by_its_place():
    indices = iter([4, 5])
    seeding = Seeding.of(None, Ticket(0, 0, 3, indices, 0, 9), True)
    assert seeding is not None
    assert seeding.names == ["batch 3"]
    assert list(indices) == [4, 5]


def test_torchs_wrappers_only_pass_calls_on():
    assert not fetches_together(Subset(Drawing(3), [0]), True)
    assert fetches_together(Subset(Drawing(3), [0]))
    assert fetches_together(Subset(Together(3), [0]), True)
    assert fetches_together(StackDataset(Drawing(3), Subset(Together(3), range(3))), True)
    assert not fetches_together(StackDataset(a=Drawing(3)), True)
    assert not fetches_together(ConcatDataset([Together(3)]), True)
    assert is_coroutine_function(Subset(ConcatDataset([AsyncDrawing(2), AsyncNumbers(2)]), [0]))
    assert not is_coroutine_function(StackDataset(AsyncDrawing(2), Numbers(2)))


def test_a_worker_notes_its_generators_states_before_it_answers_if_it_has_drawn():
    with bench_of(Drawing(9), as_list) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        for seq in range(3):
            parent.ask([seq], first=seq)
            assert type(parent.next()) is Batch
            states_after = parent.page.noted(0, seq)
            assert states_after is not None
            assert states_after == Generators().get().packed()
        assert parent.page.noted(0, 0) is None  # there are two places
        assert parent.page.noted(0, 1) != parent.page.noted(0, 2)
        assert parent.page.noted(7, 0) == states_after
    np.random.seed(0)  # whoever was here before may have left a deviate, which is noted each time
    with bench_of(Numbers(), as_list) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.ask([1], [2], [3])
        answers = [parent.next() for _ in range(3)]
        assert parent.page.noted(0, 0) == parent.page.noted(0, answers[-1].seq)  # nothing was drawn since


def test_samples_with_a_key_leave_no_notes():
    with bench_of(Drawing(9), as_list) as (bench, parent), in_a_thread(lambda: inline.serve(bench), parent):
        parent.tell(Ticket(0, 0, 0, [1], 1 << 20, 5))
        parent.next()
        assert parent.page.noted(0, 0) is None
