"""Samplers that know every place of their order: for our loader, torch's, or any loop that takes a sampler.

Their state is a position that all ranks have in common, so that other ranks, and another number of them, can go on
from it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sized
from typing import Any, ClassVar, Final, cast

import numpy as np
from torch.utils.data import DistributedSampler as TorchDistributedSampler
from torch.utils.data import Sampler

from aloader import ranks
from aloader.sampling.orders import BLOCK, Order, Permuted, Shuffled, Straight, indices_of
from aloader.sampling.permutation import MOST
from aloader.sampling.shares import ENDS, Ends, Share

_VERSION: Final = 1


class Seekable(Sampler[int]):
    """What both samplers have: an order for each epoch, a share of it, and a place to go on from."""

    kind: ClassVar[str]
    #: Set by a loader that made this sampler itself, and tells it the epoch.
    automatic: bool = False

    seed: int
    epoch: int
    _start = 0  # where the next pass of this epoch begins
    _samples = 0  # where the pass is that was drawn from last

    # -- what a kind of sampler says of itself ---------------------------------------------------------------------

    def order(self, epoch: int) -> Order:
        """All indices of an epoch, of all ranks."""
        raise NotImplementedError

    def share(self, start: int, batch_size: int | None = None, drop_last: bool = False) -> Share:
        """This rank's part of them from a position on."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """What must not be another one where a state is taken up."""
        raise NotImplementedError

    # -- passes ----------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[int]:
        self._samples = self._start
        return self._pass(self.epoch)  # of the epoch that it is now, whenever the first index is drawn

    def _pass(self, epoch: int) -> Iterator[int]:
        share, order = self.share(self.take_start()), self.order(epoch)
        self._samples = share.start
        for first in range(0, share.samples, BLOCK):
            last = min(first + BLOCK, share.samples)
            for at, index in enumerate(indices_of(order, share, first, last), first + 1):
                self._samples = min(share.total, share.start + at * share.world_size)
                yield index
        self._samples = share.total

    @property
    def start(self) -> int:
        """The position that the next pass begins at: not 0 after `load_state_dict`."""
        return self._start

    def take_start(self) -> int:
        """The same, for a pass that begins now: the one after it begins at 0 again."""
        start, self._start = self._start, 0
        return start

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next pass is of. Another one than that of a state that was loaded starts from 0."""
        epoch = _integer("epoch", epoch)
        if epoch != self.epoch:
            self._start = self._samples = 0
        self.epoch = epoch

    # -- state -----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the pass is, after the last index that it has given: a few numbers that JSON can hold.

        `samples` counts positions of the order that all ranks together have used, if all are as far as this one. A
        loader that draws ahead of what it hands out (torch's, with workers) is behind it; aloader's has a state itself.
        """
        state = {"version": _VERSION, "kind": self.kind, **self.identity()}
        return state | {"epoch": self.epoch, "samples": self._start or self._samples}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Have the next pass go on from there, on this rank of however many there are now.

        Raises ValueError for a state of other data, another seed or another kind of sampler.
        """
        version = state_dict.get("version")
        if version != _VERSION:
            raise ValueError(f"this state is of version {version!r}, and this aloader reads version {_VERSION}")
        check_same({"kind": self.kind, **self.identity()}, state_dict)
        self.epoch = int(state_dict["epoch"])
        self._start = self._samples = int(state_dict["samples"])


class ShuffledSampler(Seekable):
    """All indices below n in an order that follows from n, seed and epoch alone: no list, and any place at once.

    data_source_or_n: the dataset, or how many samples there are, 2**62 at most.
    seed, epoch: any integers. `set_epoch` before each epoch, for another order.
    rank, world_size: the indices are dealt out to so many ranks, of which this is one.
    ends: what is done where they do not come out even, so that all ranks have the same number of batches. `"pad"`
        repeats samples from the beginning, `"drop"` leaves out the rest, and `"even"` repeats and leaves out nothing:
        ranks have one sample more or less than others, and the last batch of some has one more than the batch size
        (in aloader's loader; as a plain sampler, without batches, it gives one index more or less). With fewer samples
        than ranks, the ranks without one repeat one.

    The order is the same on every machine and in every later version; it is not torch's for the same seed.
    Raises TypeError and ValueError for arguments.
    """

    kind = "shuffled"

    def __init__(
        self,
        data_source_or_n: Sized | int,
        *,
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        ends: Ends = "pad",
    ) -> None:
        if ends not in ENDS:
            raise ValueError(f"ends should be one of {', '.join(map(repr, ENDS))}, but got ends={ends!r}")
        self.data_source = _sized("data_source_or_n", data_source_or_n)
        self.seed = _integer("seed", seed)
        self.epoch = _integer("epoch", epoch)
        self.rank, self.world_size = ranks.checked(rank, world_size)
        self.ends = ends

    def __len__(self) -> int:
        """This rank's samples in a whole epoch."""
        return self.share(0).samples

    def order(self, epoch: int) -> Order:
        return Shuffled(len(self.data_source), self.seed, epoch)

    def share(self, start: int, batch_size: int | None = None, drop_last: bool = False) -> Share:
        total = len(self.data_source)
        return Share(total, start, self.rank, self.world_size, self.ends, batch_size, drop_last)

    def identity(self) -> dict[str, Any]:
        return {"total": len(self.data_source), "seed": self.seed}

    def __repr__(self) -> str:
        return (
            f"ShuffledSampler({len(self.data_source)}, seed={self.seed}, epoch={self.epoch}, rank={self.rank}, "
            f"world_size={self.world_size}, ends={self.ends!r})"
        )


class DistributedSampler(Seekable, TorchDistributedSampler[int]):
    """Torch's `DistributedSampler`, with the same order, without its list of all indices, and with a state.

    It is one of torch's, too (`isinstance`), so that frameworks that look for one find it. `dataset_or_n` may be the
    number of samples. `num_replicas` and `rank` are, if not given, those of torch.distributed where that is set up,
    else torchrun's, else this process is alone.

    Raises ValueError for a rank that is none, TypeError for a dataset without a length.
    """

    kind = "distributed"

    def __init__(
        self,
        dataset_or_n: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None or rank is None:
            current = ranks.current()
            num_replicas = current.world_size if num_replicas is None else num_replicas
            rank = current.rank if rank is None else rank
        dataset = cast("Any", _sized("dataset_or_n", dataset_or_n))
        TorchDistributedSampler.__init__(self, dataset, num_replicas, rank, shuffle, seed, drop_last)

    @classmethod
    def like(cls, sampler: TorchDistributedSampler[Any]) -> DistributedSampler:
        """One of ours with the arguments and the epoch of one of torch's."""
        arguments = sampler.num_replicas, sampler.rank, sampler.shuffle, sampler.seed, sampler.drop_last
        ours = cls(sampler.dataset, *arguments)
        ours.epoch = sampler.epoch
        return ours

    def order(self, epoch: int) -> Order:
        note = {"epoch": int(epoch)}
        return Permuted(self._total, self.seed + epoch, **note) if self.shuffle else Straight(**note)

    def share(self, start: int, batch_size: int | None = None, drop_last: bool = False) -> Share:
        ends: Ends = "drop" if self.drop_last else "pad"
        if Share(self._total, 0, self.rank, self.num_replicas, ends).samples != self.num_samples:
            raise ValueError(
                f"len(dataset) is {self._total} now, which is not {self.num_samples} samples for each of "
                f"{self.num_replicas} replicas, as it was: make a new DistributedSampler when the dataset changes"
            )
        return Share(self._total, start, self.rank, self.num_replicas, ends, batch_size, drop_last)

    def identity(self) -> dict[str, Any]:
        return {"total": self._total, "seed": int(self.seed), "shuffle": bool(self.shuffle)}

    @property
    def _total(self) -> int:
        return len(cast("Sized", self.dataset))

    def __repr__(self) -> str:
        return (
            f"DistributedSampler({self._total}, num_replicas={self.num_replicas}, rank={self.rank}, "
            f"shuffle={self.shuffle}, seed={self.seed}, drop_last={self.drop_last}, epoch={self.epoch})"
        )


_WORDS: Final = {"kind": "kind of sampler", "total": "number of samples", "seed": "seed", "shuffle": "shuffle"}


def check_same(now: dict[str, Any], state: dict[str, Any]) -> None:
    """Raises ValueError, which says what differs, for a state of something else than there is now."""
    differing = [
        f"{_WORDS.get(key, key)} was {state.get(key)!r} and is {value!r}"
        for key, value in now.items()
        if state.get(key) != value
    ]
    if differing:
        raise ValueError(
            f"this state belongs to another order: {', '.join(differing)}. Load it where the data and the sampler are "
            "the same as when it was taken, or begin anew without it"
        )


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"{name} should be an integer, but got {name}={value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} should be an integer, but got {name}={value!r}") from None


def _sized(name: str, value: Any) -> Sized:
    """What has as many samples as this dataset or number says."""
    if not isinstance(value, Sized):
        value = _integer(f"{name} (a dataset with a length, or the number of samples)", value)
        if not 0 <= value <= MOST:
            raise ValueError(f"{name} should be a number of samples from 0 to 2**62, but got {name}={value}")
        value = range(value)
    return cast("Sized", value)
