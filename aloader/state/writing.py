"""A loader's state, written and read: where a pass over the data is, as a small dict that JSON can hold.

A state says what follows from nothing else: which epoch, how many batches the user has had of it, and how the sampler
began (a seed, not an order). What workers have fetched ahead is no part of it. It is put together when it is asked for,
from what a pass has noted anyway (`channel.record`).

    version     1
    epoch       its number, from 0
    batches     how many of its batches the user has had (in this rank)
    beyond      with in_order=False: those that came before their turn, as a bitmap in hexadecimal from `batches` on
    seed        the loader's `seed=`, or None
    base_seed   what torch's loader would have drawn for its workers; None with `seed=`
    sampler     how the sampler began, and what it says of itself (`sampling.source`)
    data        what it belongs to (`state.fit`)
    workers     of iterable datasets and those that have a state: each worker's tickets, and what its dataset said
    next_worker whose turn is next, where `workers` are

A state that is taken before an epoch's first batch fixes that epoch: what has to be drawn at random is drawn then.
"""

from __future__ import annotations

from typing import Any, Final

from aloader.channel.marks import Mark, Resume, unpack_mark
from aloader.channel.record import Record
from aloader.sampling.jsonable import decode, encode

VERSION: Final = 1

#: What every state has.
KEYS: Final = frozenset({"version", "epoch", "batches", "seed", "base_seed", "sampler", "data"})


def written(
    record: Record, *, epoch: int, seeds: tuple[int | None, int | None], source: Any, data: dict[str, Any]
) -> dict[str, Any]:
    """What does not concern workers. `seeds`: the loader's own, and torch's base seed."""
    progress = record.progress
    state: dict[str, Any] = {
        "version": VERSION,
        "epoch": epoch,
        "batches": progress.low,
        "seed": seeds[0],
        "base_seed": seeds[1],
        "sampler": source.state(progress.low),
        "data": data,
    }
    if progress.beyond:
        state["beyond"] = f"{sum(1 << (number - progress.low) for number in progress.beyond):x}"
    return state


def numbers_beyond(state: dict[str, Any]) -> list[int]:
    """The numbers of the batches that came before their turn."""
    bits = int(state.get("beyond", "0"), 16)
    return [state["batches"] + at for at in range(bits.bit_length()) if bits >> at & 1]


def points(record: Record) -> list[Resume]:
    """Where each worker would go on; where nobody reads ahead, the dataset is asked now, unless it is beyond what it
    has failed in, which comes again."""
    found = record.points()
    beyond = any(share.progress.has_failed for share in record.shares)
    packed = None if beyond or record.now is None else record.now()
    if packed is not None:
        low = found[0].low
        found[0] = Resume(unpack_mark(packed), low, low)
    return found


def worker_state(slot: int, point: Resume) -> dict[str, Any]:
    """One worker's part of a state: `tickets` that the user has had (`beyond` them some more, by number), the first
    that has to be read again, and what the dataset and its iterator said of themselves before that one."""
    mark = point.mark or Mark()
    where = f"the state of worker {slot}'s"
    return {
        "tickets": point.low,
        "beyond": list(point.beyond),
        "reads_from": point.reads_from,
        "samples": mark.position,
        "ended": mark.ended,
        "before": mark.before,
        "dataset": encode(mark.dataset, f"{where} dataset"),
        "iterator": encode(mark.iterator, f"{where} iterator"),
    }


def resume_of(worker: dict[str, Any]) -> Resume:
    """The same, read."""
    states = decode(worker["dataset"]), decode(worker["iterator"])
    mark = Mark(*states, worker["samples"], worker["ended"], worker["before"])
    said = mark.dataset is not None or mark.iterator is not None or mark.position or mark.ended
    return Resume(mark if said else None, worker["reads_from"], worker["tickets"], tuple(worker["beyond"]))
