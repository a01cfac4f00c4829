"""The place that a URL names: whether it can be read, how soon and how fast, what it lies on, whose clock it has."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from urllib.parse import unquote, urlsplit

from aloader.checkup import skew
from aloader.checkup.report import Check, ok, problem, warning
from aloader.checkup.words import seconds, size
from aloader.options import MIB

if TYPE_CHECKING:
    from aloader.storage.base import Store

#: Seconds that opening, listing and reading have together.
DEADLINE: Final = 10.0

#: Bytes of the first object that are read, at most.
MOST: Final = 8 * MIB

#: File systems whose server is elsewhere.
NETWORK: Final = frozenset(
    "9p afs beegfs ceph cifs glusterfs gpfs lustre ncpfs nfs nfs4 orangefs panfs pvfs2 smb3 smbfs wekafs".split()
)

#: Programs that show a bucket as a folder, as they name themselves in the list of mounts.
BUCKETS: Final = ("s3fs", "gcsfuse", "goofys", "mountpoint-s3", "rclone", "blobfuse", "blobfuse2", "juicefs")

#: Seconds for a first byte from which on something is unusual: S3 takes 30 ms from within its region.
FAR: Final = 0.3


class Aim(NamedTuple):
    """What is opened, and which key is read; "" for the first one that is listed."""

    place: str | Store
    key: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What happened, in this order; what did not is None. `shown` is the store without secrets."""

    shown: str
    error: str = ""
    step: str = ""  # that went wrong: "open", "list" or "read"
    listed: float | None = None
    key: str = ""
    nbytes: int = 0
    first_byte: float | None = None
    took: float = 0.0
    listable: bool = True
    file_system: str = ""
    device: str = ""
    skew: float | None = None  # seconds that this machine is ahead of the store


def look(place: str | Store, deadline: float = DEADLINE) -> Facts:
    try:
        aim = aimed(place) if isinstance(place, str) else Aim(place)
    except ValueError:  # it says what it was given, which may be secret
        return Facts("this URL", "it is not one that can be read", "open")
    facts = asyncio.run(_read(aim, deadline))
    if isinstance(aim.place, str) and (path := path_of(aim.place)) is not None:
        device, kind = mounted_at(os.path.realpath(path), _mounts())
        return replace(facts, file_system=kind, device=device)
    return replace(facts, skew=skew.measure(aim.place))


def judge(facts: Facts) -> Iterator[Check]:
    yield _reading(facts)
    if facts.file_system and (not facts.error or _remote(facts)):
        yield _file_system(facts)
    if facts.skew is not None:
        yield skew.judge(facts.skew)


def _reading(facts: Facts) -> Check:
    if facts.error:
        local = facts.file_system or "LocalStore" in facts.shown
        remedies = {
            "open": "is the URL right, and is everything installed that it needs?",
            "list": "is the path right, and is it mounted here?" if local else
                    "are bucket, prefix and credentials right, and may they list?",
            "read": "may this user read it?" if local else "are these credentials allowed to read (s3:GetObject)?",
        }  # fmt: skip
        text = facts.error if facts.shown in facts.error else f"{facts.shown or repr('')}: {facts.error}"
        return problem("storage", text, remedies.get(facts.step, ""))
    if not facts.listable:
        text = f"{facts.shown}: a web server, which does not say what it has"
        return warning("storage", text, "give the URL of one object, to have that read")
    if facts.first_byte is None:
        return warning("storage", f"{facts.shown}: there is nothing in it", "look for a typing error in the prefix")
    speed = f", {facts.nbytes / facts.took / 1e6:,.1f} MB/s" if facts.nbytes >= MIB // 8 else ""
    listed = f"listed in {seconds(facts.listed)}; " if facts.listed is not None else ""
    text = f"{facts.shown}: {listed}{facts.key}: first byte after {seconds(facts.first_byte)}, "
    text += f"{size(facts.nbytes)} in {seconds(facts.took)}{speed}"
    if facts.first_byte > FAR:
        remedy = "run in the bucket's region; concurrency= hides latency, a cache (open_store(…, cache=…)) avoids it"
        return warning("storage", text, remedy)
    return ok("storage", text)


def _file_system(facts: Facts) -> Check:
    text = f"{facts.file_system}, of {facts.device}"
    program = facts.device.rpartition("/")[2].partition("#")[0]
    if facts.file_system.startswith("fuse") and (program in BUCKETS or facts.file_system[5:] in BUCKETS):
        why = f"{text}: a bucket that is shown as a folder"
        return warning("file system", why, "read the bucket itself (s3://…), which asks for many objects at once")
    if facts.file_system in NETWORK:
        why = f"{text}: files come over a network"
        return warning("file system", why, 'LocalStore(path, profile="nfs") reads 32 of them side by side, not 8')
    return ok("file system", text)


def _remote(facts: Facts) -> bool:
    return facts.file_system in NETWORK or facts.file_system.startswith("fuse")


def aimed(url: str) -> Aim:
    """What to open for this URL. A web server is asked for the object that the URL names, a folder for a file in it."""
    scheme, mark, _ = url.partition("://")
    if mark and scheme in ("http", "https"):
        parts = urlsplit(url)
        folder, _, name = parts.path.rpartition("/")
        return Aim(parts._replace(path=folder).geturl(), unquote(name))
    path = path_of(url)
    if path is not None and os.path.isfile(path):
        folder, name = os.path.split(os.path.abspath(path))
        return Aim(folder, name)
    return Aim(url)


def path_of(url: str) -> str | None:
    """The path that a URL of local files stands for; None for one of something else."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        return url
    return unquote(rest) if scheme == "file" else None


def mounted_at(path: str, mounts: str) -> tuple[str, str]:
    """Device and kind of the file system that a path is on, from the text of /proc/self/mounts. "" for unknown."""
    found = ("", "", "")
    for line in mounts.splitlines():
        device, point, kind = line.split(" ")[:3]
        point = point.replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(found[0]):  # of those at one point, the last one lies on top
            found = (point, device, kind)
    return found[1:]


# -- looking ----------------------------------------------------------------------------------------------------------


def _mounts() -> str:
    try:
        with open("/proc/self/mounts", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


async def _read(aim: Aim, deadline: float) -> Facts:
    """One try at everything: what fails is to be seen, and not to be tried again."""
    from aloader.storage import open_store
    from aloader.storage.wrappers.wrapper import innermost

    try:
        store = open_store(aim.place, retry=False, limit=False)
    except Exception as error:
        return Facts(_without_secrets(str(aim.place)), _said(error), "open")
    steps = _Steps(store, Facts(repr(innermost(store))))
    try:
        async with asyncio.timeout(deadline):
            await steps.run(aim.key)
    except TimeoutError:
        return replace(steps.facts, error=f"no answer within {seconds(deadline)}", step=steps.step)
    except Exception as error:
        return replace(steps.facts, error=_said(error), step=steps.step)
    return steps.facts


class _Steps:
    """What is done with a store, and what has come of it so far."""

    def __init__(self, store: Any, facts: Facts) -> None:
        self._store = store
        self.facts = facts
        self.step = "open"

    async def run(self, key: str) -> None:
        async with self._store as store:
            self.step = "list"
            if not key and "HTTPStore" in self.facts.shown:
                self.facts = replace(self.facts, listable=False)
                return
            found = (key, None) if key else await self._first(store)
            if found is not None:
                self.step = "read"
                await self._get(store, *found)

    async def _first(self, store: Any) -> tuple[str, int] | None:
        """The first object that is listed and not empty, else an empty one."""
        began, empty = time.perf_counter(), None
        async with aclosing(cast("AsyncIterator[Any]", store.list())) as listing:  # type: ignore[type-var]
            async for info in listing:
                if self.facts.listed is None:
                    self.facts = replace(self.facts, listed=time.perf_counter() - began)
                empty = info.key, 0
                if info.size:
                    return info.key, info.size
        return empty

    async def _get(self, store: Any, key: str, nbytes: int | None) -> None:
        if nbytes != 0:
            await store.get(key, 0, 1)  # the connection is made
        began = time.perf_counter()
        if nbytes != 0:
            await store.get(key, 0, 1)
        first = time.perf_counter() - began
        began = time.perf_counter()
        data = await (store.get(key, 0, MOST) if nbytes is None or nbytes > MOST else store.get(key))
        took = max(time.perf_counter() - began, 1e-9)
        self.facts = replace(self.facts, key=key, nbytes=len(data), first_byte=first, took=took)


def _without_secrets(url: str) -> str:
    """What stands before "@" may be a password, and behind "?" a signature."""
    scheme, mark, rest = url.partition("?")[0].partition("://")
    if not mark:
        return url
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def _said(error: Exception) -> str:
    """The error's own sentence; of a group, its first."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    from aloader.errors import StorageError

    text = " ".join(str(error).split())[:600]
    return text if isinstance(error, StorageError | ValueError | ImportError) else f"{type(error).__name__}: {text}"
