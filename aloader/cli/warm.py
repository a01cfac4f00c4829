"""`aloader warm URL`: reads a data set once, so that it is near afterwards.

What is left for a program to read, the summary, goes to standard output; the line that shows progress is for terminals
only.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TextIO

from aloader.checkup.words import size as _size
from aloader.datasets import ObjectDataset
from aloader.errors import CacheWarning, StorageError
from aloader.options import MIB
from aloader.storage import Cached, HTTPStore, Store, open_store
from aloader.storage.ranges import LARGE
from aloader.storage.wrappers.wrapper import innermost

#: Bytes that are being read at once, whatever the concurrency: objects may be large.
IN_FLIGHT: Final = 512 * MIB

#: Objects that may fail before it is given up.
FAILURES: Final = 10

#: Seconds between two lines of progress.
TICK: Final = 0.5


def warm(options: argparse.Namespace) -> int:
    """List, read, and say what has been read."""
    store = open_store(options.url, verify=options.verify)
    found = _found(store, options)
    assert found.sizes is not None
    if options.cache is not None:
        store = Cached(store, options.cache, options.limit, complete=True)
        if not store.has_room_for(found.sizes.tolist()):
            raise ValueError(
                f"{_size(int(found.sizes.sum()))} in {len(found):,} objects do not fit into a cache of "
                f"{_size(store.limit)}, of which a tenth stays free: give a larger --limit, or a --prefix"
            )
    progress = Progress(len(found), int(found.sizes.sum()), sys.stderr)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", CacheWarning)
        whole = asyncio.run(_read(store, list(zip(found.keys, found.sizes.tolist(), strict=True)), options, progress))
    for warning in heard:
        print(f"aloader warm: {warning.message}", file=sys.stderr)
    print(progress.summary())
    return 0 if whole and not progress.failed and not heard else 1


def _found(store: Store, options: argparse.Namespace) -> ObjectDataset:
    if options.manifest is None or not isinstance(innermost(store), HTTPStore):
        suffix = tuple(options.suffix or ())
        return ObjectDataset.from_prefix(store, options.prefix, suffix=suffix, manifest=options.manifest)
    if options.prefix or options.suffix:
        raise ValueError("what is on a web server is what its manifest says: leave out --prefix and --suffix")
    return ObjectDataset.from_manifest(options.manifest, store)  # which was written where it could be listed


@dataclass
class Progress:
    """What has been done, and a line about it on a terminal."""

    objects: int
    bytes: int
    stream: TextIO
    read: int = 0
    bytes_read: int = 0
    there: int = 0
    left_out: int = 0
    failed: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def summary(self) -> str:
        seconds = max(time.monotonic() - self.began, 1e-9)
        there = f", {self.there:,} of them from the cache" if self.there else ""
        failed = f"; {len(self.failed):,} failed" if self.failed else ""
        left_out = f"; {self.left_out:,} could not be kept" if self.left_out else ""
        speed = f"{self.bytes_read / seconds / 1e6:,.1f} MB/s"
        return f"{self.read:,} objects, {_size(self.bytes_read)} in {seconds:.1f} s: {speed}{there}{left_out}{failed}"

    def show(self) -> None:
        speed = self.bytes_read / max(time.monotonic() - self.began, 1e-9) / 1e6
        done = f"{self.read:,} of {self.objects:,} objects, {_size(self.bytes_read)} of {_size(self.bytes)}"
        print(f"\r{done}, {speed:,.1f} MB/s", end="\x1b[K", file=self.stream, flush=True)

    async def run(self) -> None:
        """Show the line again and again, until cancelled."""
        try:
            while self.stream.isatty():
                self.show()
                await asyncio.sleep(TICK)
        finally:
            if self.stream.isatty():
                print("\r\x1b[K", end="", file=self.stream, flush=True)


class Budget:
    """Bytes that may be in flight. Who wants more than there are at all waits until nobody has any."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = 0
        self._freed = asyncio.Condition()

    async def take(self, size: int) -> None:
        async with self._freed:
            await self._freed.wait_for(lambda: not self._taken or self._taken + size <= self._limit)
            self._taken += size

    async def give(self, size: int) -> None:
        async with self._freed:
            self._taken -= size
            self._freed.notify_all()


async def _read(store: Store, objects: list[tuple[str, int]], options: argparse.Namespace, progress: Progress) -> bool:
    """Whether all of it is where it belongs."""
    async with store:
        shown = asyncio.create_task(progress.run())
        try:
            budget, rest = Budget(IN_FLIGHT), iter(objects)
            async with asyncio.TaskGroup() as group:
                for _ in range(options.concurrency):
                    group.create_task(_worker(store, rest, budget, progress))
            if isinstance(store, Cached):
                await store.flush()
                stats = store.stats()
                progress.there, progress.left_out = stats.hits, stats.left_out + stats.refused
        finally:
            shown.cancel()
            await asyncio.wait([shown])
    return not progress.left_out


async def _worker(store: Store, rest: Iterator[tuple[str, int]], budget: Budget, progress: Progress) -> None:
    for key, size in rest:
        if len(progress.failed) >= FAILURES:
            return
        await budget.take(size)
        try:
            data = await (store.get(key, 0, size) if size > LARGE else store.get(key))
            progress.bytes_read += len(data)
            progress.read += 1
        except StorageError as error:
            progress.failed.append(key)
            print(f"aloader warm: {error}", file=sys.stderr)
            if len(progress.failed) == FAILURES:
                print(f"aloader warm: given up after {FAILURES} failures", file=sys.stderr)
        finally:
            await budget.give(size)
