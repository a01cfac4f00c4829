"""Whether a batch can be had at all: asked before it is collated, so that it fails and nobody is killed for it.

A batch that is refused is lost, and one that is not may still fit: so only what cannot be had is refused. That is more
than machine or cgroup allow to all together, or more than is left there *and* would be if everything that the loader
holds came free. What others give back meanwhile is not known; it is their doing that there is nothing.
"""

from __future__ import annotations

from typing import Any

from aloader import options
from aloader.channel.messages import Denied
from aloader.pool.limits import Memory, memory_available


def refusal(seq: int, nbytes: int, held: int, memory: Memory) -> str:
    """Why batch `seq` cannot be had, "" if it can. `held`: bytes that the loader holds for other batches."""
    if nbytes > memory.limit - options.BASE_BYTES:
        why = f"the machine, or the cgroup (container) of the program, has {_in_words(memory.limit)} in all"
    elif nbytes > memory.available + held:
        why = f"{_in_words(memory.available)} of {_in_words(memory.limit)} can be had now"
        why += f", and {_in_words(held)} that the loader holds for other batches" if held else ""
    else:
        return ""
    return (
        f"batch {seq} takes {_in_words(nbytes)}, and {why}: it is given up before the kernel ends a process for it. "
        "Use a smaller batch_size, or allow more memory; num_workers, concurrency and what the program keeps take some "
        "as well."
    )


def denied(crew: Any, epoch: Any, worker: Any, seq: int, nbytes: int) -> bool:
    """Whether a worker that asks for so much cannot have it. Then it is told so, and answers with that."""
    if nbytes < options.LARGE_BATCH_BYTES or getattr(worker, "guesses", False):
        return False
    arenas = sum(one.mappings.nbytes for one in crew.workers.values() if hasattr(one, "mappings"))
    reason = refusal(seq, nbytes, max(arenas, epoch.statistics.reserved), memory_available())
    if reason:
        worker.link.send(Denied(crew.who.dataset, epoch.number, seq, reason))
    return bool(reason)


def _in_words(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"
