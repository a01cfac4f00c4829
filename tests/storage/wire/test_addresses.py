"""Where a name leads, from time to time: in virtual time."""

from __future__ import annotations

import asyncio
import socket

import pytest

from aloader.storage.wire.addresses import KEPT, KEPT_ON, LOOKING, Addresses
from aloader.testing.simloop import simulate

#: What a lookup finds, the seconds that it takes, or how it fails.
Found = list[str] | float | OSError


class Named(Addresses):
    """A host whose lookups have these outcomes, and the last one from then on."""

    def __init__(self, *outcomes: Found) -> None:
        super().__init__("store.test", 80)
        self.outcomes = list(outcomes)
        self.lookups = 0

    async def _resolve(self) -> list[str]:
        self.lookups += 1
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        await asyncio.sleep(outcome if isinstance(outcome, float) else 0.001)  # sleep: virtual, the lookup's
        if isinstance(outcome, OSError):
            raise outcome
        return outcome if isinstance(outcome, list) else []


@pytest.mark.parametrize("trouble", [socket.gaierror(socket.EAI_AGAIN, "again"), 3600.0])
def test_known_addresses_are_used_on_while_the_name_server_fails_or_is_slow(trouble: Found) -> None:
    async def main() -> None:
        host = Named(["10.0.0.1"], trouble, ["10.0.0.2"])
        loop = asyncio.get_running_loop()
        assert await host.in_turn() == ["10.0.0.1"]
        await asyncio.sleep(KEPT)  # sleep: virtual
        began = loop.time()
        assert await asyncio.gather(*(host.in_turn() for _ in range(8))) == [["10.0.0.1"]] * 8
        assert host.lookups == 2
        assert loop.time() - began < 2 * LOOKING
        await asyncio.sleep(KEPT_ON)  # sleep: virtual
        assert await host.in_turn() == ["10.0.0.2"]

    simulate(main)


def test_who_waits_for_a_lookup_that_fails_does_not_look_again_but_the_next_does() -> None:
    async def main() -> None:
        host = Named(socket.gaierror(socket.EAI_NONAME, "not known"))
        for lookups in (1, 2):
            failed = await asyncio.gather(*(host.in_turn() for _ in range(8)), return_exceptions=True)
            assert [(type(each), each.args) for each in failed if isinstance(each, OSError)] == [
                (socket.gaierror, (socket.EAI_NONAME, "not known"))
            ] * 8
            assert host.lookups == lookups

    simulate(main)


def test_each_connection_tries_both_families_the_preferred_one_first() -> None:
    async def main() -> None:
        host = Named(["::1", "::2", "::3", "::4", "10.0.0.1", "10.0.0.2"])
        assert [await host.in_turn() for _ in range(5)] == [
            ["::1", "10.0.0.1", "::2"],
            ["::2", "10.0.0.2", "::3"],
            ["::3", "10.0.0.1", "::4"],
            ["::4", "10.0.0.2", "::1"],
            ["::1", "10.0.0.1", "::2"],
        ]

    simulate(main)
