"""Samplers that depend on what the training loop does: drawn from when torch draws, or the order is another one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import Sampler

from . import data, orders
from .kit import WAYS, Case, assert_alike

TIMES = 8


class Following(Sampler[list[int]]):
    """The next batch depends on the last loss, which the training loop notes here."""

    def __init__(self, n: int, batches: int) -> None:
        self.n = n
        self.batches = batches
        self.loss = 1

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        for step in range(self.batches):
            yield [(self.loss * 7 + step) % self.n, (self.loss + step) % self.n]


def draw_too(loader: Any, batch: Any) -> float:
    """A training loop that draws from the generator that the sampler draws from."""
    return random.random()


def note_the_loss(loader: Any, batch: Any) -> int:
    """A training loop that its sampler follows."""
    loader.batch_sampler.loss = int(batch.sum()) + loader.batch_sampler.loss
    return loader.batch_sampler.loss


@pytest.mark.parametrize(("workers", "fork"), [(2, True), (1, False)], ids=["fork", "template"])
def test_a_sampler_that_shuffles_lazily_while_the_loop_draws(workers: int, fork: bool) -> None:
    def make() -> dict[str, Any]:
        sampler = orders.Lazy(24)
        return {"dataset": data.Made("number", 24), "sampler": sampler, "batch_size": 3, "num_workers": workers}

    assert_alike(Case(make, (None,) * TIMES, after_batch=draw_too), ways=WAYS if fork else WAYS[:1], fork=fork)


@pytest.mark.parametrize(("workers", "fork"), [(2, True), (1, False)], ids=["fork", "template"])
def test_a_sampler_that_follows_the_last_loss(workers: int, fork: bool) -> None:
    def make() -> dict[str, Any]:
        sampler = Following(97, 10)
        return {"dataset": data.Made("tensor", 97), "batch_sampler": sampler, "num_workers": workers}

    assert_alike(Case(make, (None,) * TIMES, after_batch=note_the_loss), ways=WAYS if fork else WAYS[1:], fork=fork)


def test_the_order_does_depend_on_the_loop() -> None:
    """Otherwise the tests above would show nothing."""
    orders_seen = []
    for factor in (1, 2):
        sampler = Following(97, 10)
        loader = torch.utils.data.DataLoader(data.Made("number", 97), batch_sampler=sampler)
        order = []
        for batch in loader:
            sampler.loss = factor * int(batch.sum())
            order.append(batch.tolist())
        orders_seen.append(order)
    assert orders_seen[0] != orders_seen[1]
