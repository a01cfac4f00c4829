"""What a `FaultServer` does with a request: who is let in, what is planned for it, what it gets, and what is counted.

No sockets and no event loop here: `faultprotocol` has them. Time is asked of a clock that is given.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Protocol

from aloader.testing.faults import Bucket, Fault, Faults, Latency, Plan, Plans
from aloader.testing.s3answers import Answer, Asked, answer, error
from aloader.testing.synthetic import Objects

#: The bucket of what is no object: see `Service.control`. No bucket can have this name.
CONTROL: Final = "-"


@dataclass(slots=True)
class Served:
    """What a server has done since it was started, or since it was asked with `afresh=True`.

    `requests` are by kind: "GET", "HEAD", "PUT", "LIST". `busy` is the sum of the seconds from a request's arrival to
    its last byte, of those that are `answered`: `busy / answered` is the mean latency that a client cannot get below.
    """

    requests: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    open_connections: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    answered: int = 0
    bytes_sent: int = 0
    busy: float = 0.0


class Client(Protocol):
    """A connection."""

    def reset(self) -> None: ...


class Service:
    """What the connections of one server share: the objects, the faults and the counters."""

    def __init__(
        self,
        objects: Objects,
        faults: Faults,
        seed: int,
        allowed: Iterable[str] | None,
        time: Callable[[], float] = time.monotonic,  # uvloop's own goes by milliseconds
    ) -> None:
        self.objects = objects
        self.seed = seed
        self.allowed = None if allowed is None else set(allowed)
        self.expired: set[str] = set()
        self.served = Served()
        self.time = time
        self.number = 0
        self.connections: set[Client] = set()
        self.set_faults(faults)

    def set_faults(self, faults: Faults) -> None:
        """From now on. Time, and what has been asked how often, begin anew."""
        self.faults = faults
        self.plans = Plans(faults, self.seed)
        self._bucket = Bucket(faults.throttle, faults.burst)
        self._began = self.time()
        self._early: set[str] = set()  # access keys that were there before the others expired
        self._clocked = bool(faults.throttle) or faults.expired_at is not None

    def plan(self, asked: Asked) -> Plan:
        """What happens to a request."""
        plan = self.plans.next(asked.key or f"?{asked.query}", *asked.range)
        if not self._clocked:
            return plan
        now = self.time() - self._began
        if not self._bucket.take(now):
            return plan._replace(fault=Fault.SLOW_DOWN)
        if self.faults.expired_at is not None and now < self.faults.expired_at:
            self._early.add(asked.access_key)
        elif self.faults.expires(now) and asked.access_key in self._early:
            return plan._replace(fault=Fault.EXPIRED)
        return plan

    def refuses(self) -> bool:
        """Whether the connection that has just come about should not have."""
        if not self.faults.refused:
            return False
        refused = self.plans.next("connection").fault is Fault.REFUSED
        self.served.faults[Fault.REFUSED.value] += refused
        return refused

    def answer(self, asked: Asked, body: bytes, plan: Plan) -> Answer:
        """What a request gets."""
        if self.allowed is not None or self.expired:
            who = asked.access_key
            if who in self.expired:
                return error("ExpiredToken", asked)
            if self.allowed is not None and who not in self.allowed:
                return error("InvalidAccessKeyId" if who else "AccessDenied", asked)
        try:
            return answer(asked, self.objects, body, plan)
        except (ValueError, KeyError):
            return error("InvalidArgument", asked)

    def connected(self, connection: Client) -> None:
        self.connections.add(connection)
        self.served.connections += 1
        self.served.open_connections += 1

    def disconnected(self, connection: Client) -> None:
        self.connections.discard(connection)
        self.served.open_connections -= 1

    def arrived(self, asked: Asked, plan: Plan) -> None:
        """Count a request that is answered from now on."""
        served = self.served
        self.number += 1
        served.requests[asked.method if asked.key or asked.method != "GET" else "LIST"] += 1
        served.in_flight += 1
        if served.in_flight > served.most_in_flight:
            served.most_in_flight = served.in_flight
        if plan.fault is not None and plan.fault is not Fault.REFUSED:
            served.faults[plan.fault.value] += 1

    def gone(self, seconds: float | None, nbytes: int) -> None:
        """Count its end: `seconds` after it arrived, or None if the client did not wait for it."""
        served = self.served
        served.in_flight -= 1
        served.bytes_sent += nbytes
        if seconds is not None:
            served.answered += 1
            served.busy += seconds

    def look(self, afresh: bool) -> dict[str, Any]:
        """What was counted; `afresh`: and forget it, but for what is going on."""
        now = self.served
        if afresh:
            self.served = Served(
                open_connections=now.open_connections, in_flight=now.in_flight, most_in_flight=now.in_flight
            )
        said = {each.name: getattr(now, each.name) for each in fields(now)}  # `asdict` takes Counters for other dicts
        return said | {"requests": dict(now.requests), "faults": dict(now.faults)}

    def settle(self, faults: dict[str, Any] | None, expired: Iterable[str]) -> None:
        """Change what can be changed while it runs."""
        self.expired.update(expired)
        if faults is not None:
            self.set_faults(faults_from(faults))

    def control(self, asked: Asked, body: bytes) -> Answer:
        """The server's own counters and settings, under a bucket's name that no bucket can have."""
        match asked.method, asked.key:
            case "GET", "served":
                said = json.dumps(self.look(asked.query == "afresh"))
                return Answer(200, "Content-Type: application/json\r\n", said.encode())
            case "PUT", "settings":
                self.settle(**json.loads(body))
                return Answer(200, "")
            case _:
                return error("MethodNotAllowed", asked)


def faults_from(said: dict[str, Any]) -> Faults:
    """Of JSON, which knows neither dataclasses nor tuples."""
    return Faults(**{**said, "latency": Latency(**said["latency"]), "stall": tuple(said["stall"])})
