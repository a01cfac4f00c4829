"""The process of a `FaultServer`. Prints its port, and serves until it is killed.

    python -I faultprocess.py SETTINGS

SETTINGS is a file with a pickle of the arguments. The package around this file is not initialised: that would import
torch, which takes longer than everything else together and is of no use here.
"""

from __future__ import annotations

import asyncio
import pickle
import sys
import types
from pathlib import Path


def main() -> None:
    package = types.ModuleType("aloader")
    package.__path__ = [str(Path(__file__).parent.parent)]
    sys.modules["aloader"] = package
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1]).read_bytes()))


async def serve(settings: bytes) -> None:
    from aloader.testing.faultprotocol import listen
    from aloader.testing.faultservice import Service
    from aloader.testing.synthetic import objects_of

    what, faults, seed, allowed = pickle.loads(settings)
    service = Service(objects_of(what), faults, seed, allowed)
    async with await listen(service) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    main()
