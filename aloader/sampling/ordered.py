"""Tickets from samplers whose whole order is known by a few numbers: any place of it is had at once.

The state is a position in samples, so that a pass goes on with another batch size, and, where ranks share the order,
on another number of ranks.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Protocol

import torch
from torch.utils.data import DistributedSampler as TorchDistributedSampler
from torch.utils.data import RandomSampler, SequentialSampler

from aloader.sampling.orders import BLOCK, Order, Permuted, Straight, indices_of
from aloader.sampling.passes import Watched
from aloader.sampling.samplers import DistributedSampler, Seekable, ShuffledSampler, check_same
from aloader.sampling.shares import Share


class Orders(Protocol):
    """A sampler, as far as an order and a share of it follow from it."""

    @property
    def kind(self) -> str:
        """Which kind of sampler, in a state."""

    @property
    def start(self) -> int:
        """Where its next pass begins."""

    @property
    def world_size(self) -> int:
        """How many ranks share the order."""

    def settle(self, state: dict[str, Any] | None) -> bool:
        """Draw what the order depends on, or take it from a state. Whether it must not be looked for later again."""

    def identity(self) -> dict[str, Any]:
        """What must not be another one where a state is taken up."""

    def order(self) -> Order:
        """All indices of this pass."""

    def share(self, start: int, batch_size: int | None, drop_last: bool) -> Share:
        """What this process has of it."""

    def begun(self) -> None:
        """The pass is drawn from."""


class OrderSource:
    """The tickets of one pass, from `start` on."""

    def __init__(
        self, orders: Orders, start: int, first: int, batching: tuple[int | None, bool], watch: Watched | None
    ) -> None:
        self._orders = orders
        self._start = start
        self.first = first
        self._batching = batching
        self._watch = watch
        self._pass: tuple[Order, Share] | None = None
        self._note: dict[str, Any] = {}
        self._given = 0
        self._block: list[int] = []
        self._block_at = 0

    @property
    def heavy(self) -> bool:
        """Whether `prepare` takes longer than a loop may be held up."""
        return self._pass is not None and self._pass[0].heavy

    def prepare(self) -> None:
        """Whatever takes time. May run in a thread."""
        self.open()[0].prepare()

    def draw(self) -> Any:
        """The next ticket's indices. Raises StopIteration at the end."""
        order, share = self.open()
        if not self._given:
            self._orders.begun()
        if self._watch is not None:
            self._watch.began()
        if self._given >= share.tickets:
            if self._watch is not None:
                self._watch.ended()
            raise StopIteration
        first, last = share.bounds(self._given)
        if last > self._block_at + len(self._block):
            self._block = indices_of(order, share, first, min(max(last, first + BLOCK), share.samples))
            self._block_at = first
        indices = self._block[first - self._block_at : last - self._block_at]
        self._given += 1
        return indices if share.batch_size is not None else indices[0]

    @property
    def tickets(self) -> int:
        """How many the pass has in all, with those before `first`."""
        return self.first + self.open()[1].tickets

    @property
    def drawn(self) -> int:
        """Samples so far, with those that this rank had, or another in its place, before this pass began."""
        if self._pass is None:
            return 0
        share = self._pass[1]
        return share.start // share.world_size + (share.bounds(self._given - 1)[1] if self._given else 0)

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to draw."""
        return self._pass is not None and self._given >= self._pass[1].tickets

    def state(self, batches: int) -> dict[str, Any]:
        """What `ordered_source` takes to go on after the epoch's first so many tickets. JSON can hold it."""
        _, share = self.open()
        place = {"samples": share.after(batches - self.first), "batches": batches, "step": share.step}
        return {**self._note, **place}

    def open(self) -> tuple[Order, Share]:
        """The pass, from now on of the epoch and the length that there are now."""
        if self._pass is None:
            order, share = self._orders.order(), self._orders.share(self._start, *self._batching)
            identity = {**self._orders.identity(), "total": share.total}
            self._note = {"kind": self._orders.kind, **identity, **order.note()}
            self._pass = order, share
        return self._pass


def ordered_source(
    inner: Any, batching: tuple[int | None, bool], watch: Watched | None, state: dict[str, Any] | None
) -> OrderSource | None:
    """The source for a sampler, in batches or not; None for one whose order cannot be had in this way.

    Raises ValueError for a state of something else.
    """
    orders = _orders_of(inner)
    if orders is None:
        return None
    step = (batching[0] or 1) * orders.world_size
    start, first = orders.start, orders.start // step
    if state is not None:
        check_same({"kind": orders.kind, **orders.identity()}, state)
        start = int(state["samples"])
        first = int(state["batches"]) if state["step"] == step else start // step
    if watch is not None and (start or state is not None):
        watch.resumed = True
    settled = orders.settle(state)
    source = OrderSource(orders, start, first, batching, watch)
    if settled:
        source.open()
    return source


def _orders_of(inner: Any) -> Orders | None:
    kind = type(inner)
    if kind is SequentialSampler:
        return _Counted(inner)
    if kind is RandomSampler:
        return _Drawn(inner) if is_one_permutation(inner) else None
    if kind in (ShuffledSampler, DistributedSampler) or (kind is TorchDistributedSampler and _is_as_made(inner)):
        return _ByEpoch(inner)
    return None


def is_one_permutation(sampler: RandomSampler) -> bool:
    """Whether all that it gives is one permutation, or a part of it, from a seed of the global generator."""
    whole = sampler._num_samples is None  # then the length need not be asked for: it may cost
    once = not sampler.replacement and (whole or sampler.num_samples <= len(sampler.data_source))
    return once and sampler.generator is None


def _is_as_made(sampler: TorchDistributedSampler[Any]) -> bool:
    """Whether the dataset still has the length that the sampler was made for: where not, torch decides what happens."""
    now = DistributedSampler.like(sampler)
    return (now.num_samples, now.total_size) == (sampler.num_samples, sampler.total_size)


class _Counted:
    """`SequentialSampler`."""

    kind: ClassVar[str] = "sequential"
    start: ClassVar[int] = 0
    world_size: ClassVar[int] = 1

    def __init__(self, sampler: SequentialSampler) -> None:
        self._data = sampler.data_source

    @cached_property
    def _total(self) -> int:
        """The length when it is first needed; asking for it may cost."""
        return len(self._data)

    def settle(self, state: dict[str, Any] | None) -> bool:
        return False

    def identity(self) -> dict[str, Any]:
        return {"total": self._total}

    def order(self) -> Order:
        return Straight()

    def share(self, start: int, batch_size: int | None, drop_last: bool) -> Share:
        return Share(self._total, start, batch_size=batch_size, drop_last=drop_last)

    def begun(self) -> None:
        """Nothing follows from it."""


class _Drawn:
    """`RandomSampler` without replacement.

    Its own iterator would hold up an event loop: it makes a list of all its indices (0.4 s for ten million, and 36
    bytes each). Here the seed is drawn where torch draws it, the permutation is made from it in a thread, and what is
    made a list of is a part of it.
    """

    kind: ClassVar[str] = "random"
    start: ClassVar[int] = 0
    world_size: ClassVar[int] = 1

    def __init__(self, sampler: RandomSampler) -> None:
        self._n = len(sampler.data_source)
        self._total = self._n if sampler._num_samples is None else sampler.num_samples
        self._seed = 0

    def settle(self, state: dict[str, Any] | None) -> bool:
        # From the global generator, as the sampler's first `next` does, which torch calls while it makes an iterator.
        self._seed = int(torch.empty((), dtype=torch.int64).random_().item()) if state is None else int(state["seed"])
        return True

    def identity(self) -> dict[str, Any]:
        return {"total": self._total, "of": self._n}

    def order(self) -> Order:
        return Permuted(self._n, self._seed, seed=self._seed)

    def share(self, start: int, batch_size: int | None, drop_last: bool) -> Share:
        return Share(self._total, start, batch_size=batch_size, drop_last=drop_last)

    def begun(self) -> None:
        """Nothing follows from it."""


class _ByEpoch:
    """Our own samplers, and torch's `DistributedSampler`, whose order is that of ours."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.kind = self._as_ours().kind
        self.start = self._as_ours().start
        self.world_size = sampler.world_size if isinstance(sampler, ShuffledSampler) else sampler.num_replicas

    def settle(self, state: dict[str, Any] | None) -> bool:
        if state is not None:
            self._sampler.set_epoch(int(state["epoch"]))
        # A long permutation is made in a thread, later; the epoch is the one that there is now.
        return state is not None or self._as_ours().order(0).heavy

    def identity(self) -> dict[str, Any]:
        return self._as_ours().identity()

    def order(self) -> Order:
        ours = self._as_ours()
        return ours.order(ours.epoch)

    def share(self, start: int, batch_size: int | None, drop_last: bool) -> Share:
        return self._as_ours().share(start, batch_size, drop_last)

    def begun(self) -> None:
        self._as_ours().take_start()

    def _as_ours(self) -> Seekable:
        sampler = self._sampler
        return sampler if isinstance(sampler, Seekable) else DistributedSampler.like(sampler)
