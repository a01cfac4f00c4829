"""A store that does as it is told, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from random import Random
from typing import Any, Self, TypeVar

from aloader.errors import BadRange, KeyNotFound, ObjectChanged
from aloader.storage import BaseStore, ObjectInfo, Request, Response
from aloader.storage.wrappers.wrapper import StatefulWrapper

#: Seconds to take, an error to raise, or a function that gives the answer.
Step = float | Exception | Callable[[Request, Response], Response]


W = TypeVar("W", bound=StatefulWrapper[Any])


def seeded(kind: type[W], seed: int) -> type[W]:
    """A wrapper whose delays are the same in each run."""

    class Seeded(kind):  # type: ignore[misc, valid-type]
        def generator(self) -> Random:
            return Random(seed)

    return Seeded


class Scripted(BaseStore):
    """Objects in versions. Each request takes the next entry of the script: its steps, one after the other."""

    def __init__(self, script: Iterable[Step | tuple[Step, ...]] = (), **objects: bytes) -> None:
        self.objects = objects
        self.versions = dict.fromkeys(objects, "1")
        self.script = list(script)
        self.requests: list[Request] = []
        self.in_flight = self.most_in_flight = self.cancelled = self.opened = 0

    def __repr__(self) -> str:
        return "Scripted()"

    async def fetch(self, request: Request) -> Response:
        entry = self.script.pop(0) if self.script else ()
        self.requests.append(request)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            return await self._act(request, entry if isinstance(entry, tuple) else (entry,))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.in_flight -= 1

    async def _act(self, request: Request, steps: tuple[Step, ...]) -> Response:
        await asyncio.sleep(0)
        change: Any = lambda request, answer: answer  # noqa: E731
        for step in steps:
            if isinstance(step, Exception):
                raise step
            if callable(step):
                change = step
            else:
                await asyncio.sleep(step)  # sleep: virtual, what the server takes
        return change(request, self.answer(request))

    def answer(self, request: Request) -> Response:
        if request.key not in self.objects:
            raise KeyNotFound(f"no object {request.key!r} in {self!r}", request.key)
        data, version = self.objects[request.key], self.versions[request.key]
        if request.version not in ("", version):
            raise ObjectChanged(f"{request.key!r} has changed", request.key)
        if request.start >= len(data) > 0:
            raise BadRange(f"{request.key!r} has {len(data)} bytes", request.key)
        stop = len(data) if request.stop is None else request.stop
        if request.most is not None:
            stop = min(stop, request.start + request.most)
        return Response(data[request.start : stop], len(data), version)

    def replace(self, key: str, data: bytes) -> None:
        self.objects[key] = data
        self.versions[key] = str(int(self.versions[key]) + 1)

    async def size(self, key: str) -> int:
        return (await self.fetch(Request(key))).size

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        for key, data in self.objects.items():
            yield ObjectInfo(key, len(data))

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        self.objects[key], self.versions[key] = bytes(data), "1"

    async def __aenter__(self) -> Self:
        self.opened += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        self.opened -= 1
