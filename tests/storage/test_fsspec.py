"""What is fsspec's own: instances that nobody shares, what its file systems raise, what is not shown."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from aloader.errors import AccessDenied, BadKey, StorageError, StoreUnreachable
from aloader.storage import FsspecStore, Request
from tests.web import FileServer


@pytest.mark.asyncio
async def test_one_that_is_asynchronous_reads_on_the_loop_with_a_session_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "key").write_bytes(b"0123456789")
    with FileServer(tmp_path) as server:
        async with FsspecStore(f"{server.url}/a") as store:
            assert await store.get("key") == b"0123456789"
            assert await store.get("key", 2, 4) == b"23"
            assert await store.size("key") == 10
            part = await store.fetch(Request("key", 8, 20))
            assert (part.data, part.size) == (b"89", 10)
            assert part.version
            session = store._opened.get()._fs._session  # type: ignore[attr-defined]
            assert not session.closed
        assert session.closed


def test_no_two_loops_share_an_instance() -> None:
    store = FsspecStore("memory://apart")

    async def instance() -> Any:
        async with store:
            return store._opened.get()._fs  # type: ignore[attr-defined]

    first, second = asyncio.run(instance()), asyncio.run(instance())
    assert first is not second
    assert fsspec.filesystem("memory") not in (first, second)


class Moody(MemoryFileSystem):  # type: ignore[misc]
    """Raises what its options say."""

    protocol = "moody"
    cachable = False

    def __init__(self, error: Exception, **options: Any) -> None:
        super().__init__(**options)
        self.error = error

    def cat_file(self, *_: Any, **__: Any) -> bytes:
        raise self.error

    info = find = pipe_file = cat_file


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (PermissionError("hush"), AccessDenied, "the file system refused"),
        (TimeoutError("hush"), StoreUnreachable, "nothing answers, or not in time"),
        (ConnectionResetError("hush"), StoreUnreachable, "nothing answers"),
        (OSError("hush"), StorageError, r"failed \(OSError\)"),
        (LookupError("hush"), StorageError, r"failed \(LookupError\)"),
    ],
)
async def test_what_a_file_system_raises_is_the_cause_of_an_error_that_names_the_key(
    error: Exception, kind: type[StorageError], message: str
) -> None:
    fsspec.register_implementation("moody", Moody, clobber=True)
    async with FsspecStore("moody://place", error=error) as store:
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.get("key"), lambda: store.get("key", 1, 2), lambda: store.size("key"),
            lambda: store.put("key", b""), lambda: anext(store.list("key")),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(kind, match=message) as caught:
                await call()
            assert (type(caught.value), caught.value.key, caught.value.__cause__) == (kind, "key", error)
            assert "hush" not in str(caught.value)


@pytest.mark.asyncio
@pytest.mark.parametrize("key", ["/a", "a/", "/"])
async def test_keys_of_which_fsspec_would_lose_a_part_are_refused(key: str) -> None:
    async with FsspecStore("memory://place") as store:
        with pytest.raises(BadKey, match="off the ends of a path"):
            await store.get(key)


def test_what_it_logs_in_with_is_pickled_and_never_shown() -> None:
    store = FsspecStore("sftp://me:hush@host/folder?token=hush", password="hush", client_kwargs={"key": "hush"})
    assert repr(store) == "FsspecStore('sftp://…@host/folder?…')"
    assert pickle.loads(pickle.dumps(store))._options == store._options
    with pytest.raises(ValueError, match="empty string"):
        FsspecStore("")


WITHOUT_EXTRA = """
import asyncio, sys
import aloader.storage
assert not {"fsspec", "aiohttp", "aiofiles"} & set(sys.modules), "imported early"
sys.modules["fsspec"] = None  # what an import of something that is not installed meets
asyncio.run(aloader.storage.FsspecStore("memory://x").__aenter__())
"""


@pytest.mark.slow
def test_without_its_extra_the_command_that_installs_it_is_said() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRA], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        'ModuleNotFoundError: fsspec stores need fsspec: pip install "aloader[fsspec]"'
    )
