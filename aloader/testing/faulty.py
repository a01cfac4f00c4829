"""A store that misbehaves: for tests of what goes around stores, and of programs that use them.

It waits by the event loop alone, so that under `aloader.testing.simloop.simulate` its seconds take no time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

from aloader.errors import (
    BadRange,
    BrokenTransfer,
    CredentialsExpired,
    KeyNotFound,
    ObjectChanged,
    ServerFailed,
    StorageError,
    StoreUnreachable,
    Throttled,
)
from aloader.storage.base import ObjectInfo, Request, Response, Store
from aloader.storage.wrappers.wrapper import Wrapper, ask
from aloader.testing.faults import Bucket, Fault, Faults, Plan, Plans


@dataclass(frozen=True, slots=True)
class Counts:
    """What a `FaultyStore` was asked for, and what it did: by the name of the fault."""

    requests: int
    in_flight: int
    most_in_flight: int
    faults: dict[str, int]


class FaultyStore(Wrapper):
    """A store around another one, with `Faults`. The same seed makes the same faults for the same requests.

    It raises what a real store raises, before or in the midst of an answer; returns flipped bits and wrong lengths as
    if nothing were wrong; and gives a version and an MD5 with each answer where the store inside gives none, so that
    what checks answers has something to go by. Expired credentials come back with `renew()`.

    A copy that was made by pickle counts, and goes by the clock, for itself.
    """

    def __init__(self, store: Store, faults: Faults, seed: int = 0) -> None:
        super().__init__(store)
        self.faults = faults
        self.seed = seed
        self._renewed = False
        self._plans = Plans(self.faults, self.seed)
        self._bucket = Bucket(self.faults.throttle, self.faults.burst)
        self._began = 0.0
        self._entered = 0
        self._requests = self._in_flight = self._most = 0
        self._by_fault: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"FaultyStore({self.store!r}, {self.faults!r}, seed={self.seed})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (FaultyStore, (self.store, self.faults, self.seed))

    def counts(self) -> Counts:
        """Since it was made."""
        return Counts(self._requests, self._in_flight, self._most, dict(self._by_fault))

    def renew(self) -> None:
        """From now on the credentials are other ones, which do not expire."""
        self._renewed = True

    async def fetch(self, request: Request) -> Response:
        with self._counted():
            plan = await self._begin(request.key, request.start, request.stop)
            answer = await self._ask(request)
            return await self._body(request, answer, plan)

    async def size(self, key: str) -> int:
        with self._counted():
            await self._begin(key)
            return await self.store.size(key)

    async def put(self, key: str, data: bytes | bytearray | memoryview) -> None:
        with self._counted():
            await self._begin(key)
            await self.store.put(key, data)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        with self._counted():
            await self._begin(prefix)
        async for info in self.store.list(prefix):
            yield info

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if not self._entered:
            self._began = asyncio.get_running_loop().time()
        self._entered += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__(None, None, None)
        self._entered -= 1

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._requests += 1
        self._in_flight += 1
        self._most = max(self._most, self._in_flight)
        try:
            yield
        finally:
            self._in_flight -= 1

    async def _begin(self, key: str, start: int = 0, stop: int | None = None) -> Plan:
        """Wait for the first byte. Raises what is answered instead of the object."""
        now = asyncio.get_running_loop().time() - self._began
        plan = self._plans.next(key, start, stop)
        if not self._bucket.take(now):
            plan = plan._replace(fault=Fault.SLOW_DOWN)
        elif self.faults.expires(now) and not self._renewed:
            plan = plan._replace(fault=Fault.EXPIRED)
        if plan.fault is not None:
            self._by_fault[plan.fault.value] += 1
        if plan.delay:
            await asyncio.sleep(plan.delay)
        if plan.fault is not None and (error := _refusal(plan.fault, plan, key, self)) is not None:
            raise error
        return plan

    async def _ask(self, request: Request) -> Response:
        """The true answer, with a version and, if it is the whole object, with a digest."""
        answer = await ask(self.store, request)
        if not answer.version:
            whole = len(answer.data) == answer.size
            digest = hashlib.md5((answer if whole else await ask(self.store, Request(request.key))).data).hexdigest()
            digests = MappingProxyType({"md5": digest}) if whole else answer.digests
            answer = answer._replace(version=f'"{digest}"', digests=digests)
        if request.version and answer.version != request.version:
            raise ObjectChanged(f"{request.key!r} in {self!r} is no longer {request.version}", request.key, status=412)
        return answer

    async def _body(self, request: Request, answer: Response, plan: Plan) -> Response:
        """Wait for the body, or for as much of it as comes."""
        data = answer.data
        if plan.rate:
            await asyncio.sleep(len(data) / plan.rate)
        if plan.pause:
            await asyncio.sleep(plan.pause)
        if plan.fault in (Fault.RESET, Fault.TRUNCATED):
            received = data[: int(len(data) * plan.at)]
            raise BrokenTransfer(
                f"cannot read {request.key!r} in {self!r}: the connection ended after {len(received)} bytes",
                request.key,
                received=received,
                version=answer.version,
                size=answer.size,
            )
        came = bytes(plan.spoilt(data))
        whole = len(data) == answer.size
        return answer._replace(data=came, size=len(came) if whole else answer.size)


def _refusal(fault: Fault, plan: Plan, key: str, store: FaultyStore) -> StorageError | None:
    """The error of a request that gets no object at all."""
    asked = f"cannot read {key!r} in {store!r}"
    match fault:
        case Fault.SERVER_ERROR:
            status = 503 if plan.odd % 2 else 500
            return ServerFailed(f"{asked}: the server answered {status}: try again", key, status=status)
        case Fault.SLOW_DOWN:
            return Throttled(f"{asked}: the server answered 503 SlowDown: ask less often", key)
        case Fault.EXPIRED:
            return CredentialsExpired(f"{asked}: the credentials have expired: renew them", key, status=403)
        case Fault.REFUSED:
            return StoreUnreachable(f"{asked}: nothing answers there: is the server up?", key)
        case Fault.NOT_FOUND:
            return KeyNotFound(f"no object {key!r} in {store!r}", key, status=404)
        case Fault.NOT_SATISFIABLE:
            return BadRange(f"{asked}: the server answered 416: the object is shorter", key, status=416)
        case Fault.MOVED:
            return StorageError(f"{asked}: the server answered 301: the bucket is in another region", key, status=301)
        case _:
            return None
