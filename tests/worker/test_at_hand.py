"""Samples that lie in memory are taken without a task; the others are begun as ever."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Subset

from aloader.channel.messages import Ticket
from aloader.datasets import ObjectDataset
from aloader.errors import KeyNotFound
from aloader.storage import LocalStore, MemoryStore
from aloader.storage.luck import MOST, PAUSE, Luck
from aloader.worker.faulty import Failed
from aloader.worker.fetch import Fetcher
from aloader.worker.generators import Seeding

KEYS = [f"{i}" for i in range(6)]


def fetcher(dataset: Any) -> Fetcher:
    return Fetcher(dataset, True, 4, may_block=True)


def told() -> tuple[list[int], Any]:
    noted: list[int] = []
    return noted, noted.append


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for key in KEYS:
        (tmp_path / key).write_bytes(key.encode() * 1000)
    return tmp_path


class Counting(LocalStore):
    """Counts the gets that were awaited."""

    awaited = 0

    async def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
        self.awaited += 1
        return await super().get(key, start, stop)

    get_now = LocalStore.get_now


@pytest.mark.asyncio
async def test_files_in_memory_are_taken_and_all_samples_come_in_order(folder: Path) -> None:
    store = Counting(folder)
    noted, note = told()
    async with ObjectDataset(store, KEYS, decode="text") as dataset:
        assert await fetcher(dataset).fetch([3, 1, 5], note) == ["3" * 1000, "1" * 1000, "5" * 1000]
        assert noted == [0, 1, 2]
        part: Any = Subset(dataset, [4, 0])  # type: ignore[arg-type]
        seeding = Seeding.of(None, Ticket(0, 0, 0, [1, 0], 0, 99), True)
        assert await fetcher(part).fetch([1, 0], note, seeding) == ["0" * 1000, "4" * 1000]
    assert store.awaited == 0 or not hasattr(os, "RWF_NOWAIT")


@pytest.mark.asyncio
async def test_what_is_not_at_hand_is_awaited_beside_it(folder: Path) -> None:
    (folder / "2").write_bytes(b"")  # what is empty is not looked at
    store = Counting(folder)
    async with ObjectDataset(store, KEYS) as dataset:
        assert await fetcher(dataset).fetch([1, 2, 3], lambda place: None) == [b"1" * 1000, b"", b"3" * 1000]
        assert store.awaited >= 1


@pytest.mark.asyncio
async def test_a_missing_file_and_an_index_out_of_range_fail_in_their_places(folder: Path) -> None:
    async with ObjectDataset(LocalStore(folder), [*KEYS, "missing"]) as dataset:
        with pytest.raises(Failed) as caught:
            await fetcher(dataset).fetch([0, 6, 1], lambda place: None)
        assert (caught.value.position, type(caught.value.cause)) == (1, KeyNotFound)
        with pytest.raises(Failed) as caught:
            await fetcher(dataset).fetch([0, 1, 99], lambda place: None)
        assert (caught.value.position, type(caught.value.cause)) == (2, IndexError)


@pytest.mark.asyncio
async def test_nothing_is_taken_that_draws_or_is_decoded_in_a_thread(folder: Path) -> None:
    for more in ({"transform": len}, {"decode": len}, {"decode": "image"}):
        store = Counting(folder)
        async with ObjectDataset(store, KEYS, **more) as dataset:  # type: ignore[arg-type]
            try:
                await fetcher(dataset).fetch([0, 1], lambda place: None)
            except Failed:
                assert more == {"decode": "image"}
        assert store.awaited >= 1


@pytest.mark.asyncio
async def test_what_a_subclass_of_the_users_makes_of_samples_or_objects_is_not_passed_over() -> None:
    class Longer(ObjectDataset):
        draws_random_numbers = False  # type: ignore[assignment]

        async def __getitem__(self, index: int) -> Any:
            return await super().__getitem__(index), index

    class Upper(MemoryStore):
        async def get(self, key: str, start: int | None = None, stop: int | None = None) -> bytes:
            return (await super().get(key, start, stop)).upper()

    async with Longer(MemoryStore({"a": b"a"}), ["a"]) as longer, ObjectDataset(Upper({"a": b"a"}), ["a"]) as upper:
        assert await fetcher(longer).fetch([0], lambda place: None) == [(b"a", 0)]
        assert await fetcher(upper).fetch([0], lambda place: None) == [b"A"]


@pytest.mark.asyncio
async def test_an_error_of_decoding_names_the_key_of_what_was_at_hand_too() -> None:
    async with ObjectDataset(MemoryStore({"a": b"{no"}), ["a"], decode="json") as dataset:
        with pytest.raises(Failed) as caught:
            await fetcher(dataset).fetch([0], lambda place: None)
    assert "while decoding 'a' of" in caught.value.cause.__notes__[0]


@pytest.mark.asyncio
async def test_only_a_workers_own_loop_may_stand_still(folder: Path) -> None:
    store = Counting(folder)
    async with ObjectDataset(store, KEYS) as dataset:
        await Fetcher(dataset, True, 4).fetch([0, 1], lambda place: None)
    assert store.awaited == 2


@pytest.mark.asyncio
async def test_memory_is_at_hand_while_it_is_open() -> None:
    store = MemoryStore({"a": b"1"})
    assert store.get_now("a", 9) is None
    async with store:
        assert (store.get_now("a", 9), store.get_now("b", 9)) == (b"1", None)
        assert store.get_now("a", 0) is None


@pytest.mark.asyncio
async def test_over_a_network_no_file_is_at_hand(folder: Path) -> None:
    async with LocalStore(folder, profile="nfs") as store:
        assert store.get_now("1", 9999) is None


def test_who_has_no_luck_tries_ever_more_seldom_until_it_turns() -> None:
    luck = Luck()
    pauses = []
    for _ in range(9):
        luck.had(False)
        pauses.append(next(n for n in range(10_000) if luck.tries()))
    assert pauses == [min(MOST, PAUSE << n) for n in range(9)]
    luck.had(True)
    assert luck.tries()
    luck.had(False)
    assert next(n for n in range(10_000) if luck.tries()) == PAUSE
