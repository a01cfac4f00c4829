"""Many requests that are cancelled, broken and answered at random: whoever gets an answer gets that of its own request,
and in the end every place is free."""

from __future__ import annotations

import asyncio
import random

import pytest

from aloader.errors import StorageError
from tests.storage.wire.conftest import Run
from tests.storage.wire.scripted import CLOSE, RESET, Said, ok, pool_of, scripted

pytestmark = pytest.mark.usefixtures("nothing_left")


def body_of(path: bytes) -> bytes:
    number = int(path[1:])
    return path * (1 + number * 7919 % 30_000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_in_a_storm_nobody_gets_anothers_answer(run: Run, seed: int) -> None:
    generator = random.Random(seed)

    def script(connection: int, number: int, request: bytes) -> list[Said]:
        whole = ok(body_of(request.split(b" ", 2)[1]))
        match generator.randrange(12):
            case 0:
                return [CLOSE]
            case 1:
                return [whole[: generator.randrange(len(whole))], generator.choice([CLOSE, RESET])]
            case 2:
                return [whole, CLOSE]
            case _:
                cut = generator.randrange(len(whole))
                return [whole[:cut], whole[cut:]]

    async def main() -> None:
        async with scripted(script) as server, pool_of(server.origin, max_connections=6) as pool:
            outcomes: list[str] = []

            async def get(number: int) -> None:
                path = f"/{number}"
                asking = asyncio.ensure_future(pool.get(path))
                if generator.random() < 0.3:
                    for _ in range(generator.randrange(40)):
                        await asyncio.sleep(0)
                    asking.cancel()
                try:
                    reply = await asking
                except (StorageError, asyncio.CancelledError) as error:
                    outcomes.append(type(error).__name__)
                else:
                    assert reply.body == body_of(path.encode())
                    outcomes.append("right")

            await asyncio.gather(*map(get, range(400)))
            assert {"right", "BrokenAnswer", "CancelledError"} <= set(outcomes)
            assert len(server.open) <= 6
            assert "0 active" in repr(pool)
            assert "0 waiting" in repr(pool)
            assert pool._places == 6

    run(main())
