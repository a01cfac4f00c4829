"""A program for `test_cache_shared`: processes that write into one cache, are killed, and get in each other's way."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from aloader.storage.base import Request, Response
from aloader.storage.wrappers.cache_folder import UNFINISHED, CacheFolder

KEYS = 40


def data_of(key: str, version: int) -> bytes:
    return random.Random(f"{key} {version}").randbytes(1 << (4 + int(key) % 16)) if version else b""


def opened(path: Path, limit: int) -> CacheFolder:
    folder = CacheFolder(path, limit, "store")
    folder.prepare()
    return folder


def forked(work: Callable[[], None]) -> int:
    """A child that does this. The program has one thread."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    return child


def write_for_ever(path: Path, seed: int, said: int) -> None:
    folder, draw = opened(path, 1 << 20), random.Random(seed)
    while True:
        key, version = f"{draw.randrange(KEYS)}", draw.randrange(1, 4)
        data = data_of(key, version)
        folder.write(Request(key), Response(data, len(data), f"{version}"))
        os.write(said, b".")


def check(path: Path) -> int:
    """How many entries there are; each of them is what somebody has written."""
    folder = opened(path, 1 << 20)
    assert os.listdir(path / UNFINISHED) == []
    found = 0
    for key in map(str, range(KEYS)):
        if (answer := folder.read(Request(key))) is not None:
            assert answer.response.data == data_of(key, int(answer.response.version)), key
            found += 1
    return found


def killed(path: Path) -> None:
    """Twenty writers, each killed at some moment of its work."""
    draw = random.Random()
    for seed in range(20):
        heard, said = os.pipe()
        child = forked(lambda: write_for_ever(path, seed, said))  # noqa: B023
        for _ in range(draw.randrange(1, 40)):
            os.read(heard, 1)
        for _ in range(draw.randrange(20_000)):
            pass
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(heard)
        os.close(said)
        assert check(path) > 0


def crowded(path: Path) -> None:
    """Writers, readers and evictors at once, in far too little room. None of them fails, and it stays bounded."""
    limit = 30 * 4096

    def work() -> None:
        folder, draw = opened(path, limit), random.Random()
        for turn in range(150):
            key, version = f"{draw.randrange(KEYS // 2)}", draw.randrange(1, 4)
            data = data_of(key, version)[:9000]
            folder.write(Request(key), Response(data, len(data), f"{version}"))
            answer = folder.read(Request(f"{draw.randrange(KEYS // 2)}"))
            assert answer is None or len(answer.response.data) == answer.response.size
            if turn % 10 == 0:
                folder.evict()

    children = [forked(work) for _ in range(4)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * 4, codes
    folder = opened(path, limit)
    taken = sum(used.size for used in folder._entries())
    assert 0 < taken <= limit + 4 * 3 * 4096, taken  # each may be at its last entry when another one measures


if __name__ == "__main__":
    killed(Path(sys.argv[1]) / "killed")
    crowded(Path(sys.argv[1]) / "crowded")
