"""A job for a spawned process waits in no pipe; what only a process that is being started may have goes along."""

from __future__ import annotations

import pytest

from tests.loader.programs import Program

PROGRAM = """
import asyncio, multiprocessing, os, sys, time
from pathlib import Path
from aloader import DataLoader

class Gate:
    '''Unpickles as soon as the program's loop has gone on: it makes the file.'''

    def __init__(self, path):
        self.path = path

    def __setstate__(self, state):
        self.path = Path(state["path"])
        deadline = time.monotonic() + 30
        while not self.path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.late = not self.path.exists()

class Data:
    def __init__(self, path, context):
        self.gate = Gate(path)
        self.large = bytes(4 << 20)
        self.counter = context.Value("i", 0)

    def __len__(self):
        return 3

    def __getitem__(self, index):
        with self.counter.get_lock():
            self.counter.value += 1
        return (self.gate.late, len(self.large))

async def main(method):
    context = multiprocessing.get_context(method)
    path = f"{os.environ['TMPDIR']}/go"
    data = Data(path, context)
    loader = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context=context)
    async with loader:
        batches = aiter(loader)
        first = asyncio.ensure_future(anext(batches))
        while not [c for c in multiprocessing.active_children() if "aloader" in c.name]:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        Path(path).touch()
        print([await first] + [batch async for batch in batches], data.counter.value)
    os.unlink(path)

if __name__ == "__main__":
    asyncio.run(main("METHOD"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_loop_goes_on_while_the_child_comes_up(tmp_path, method):
    with Program(tmp_path, PROGRAM.replace("METHOD", method), flags=()) as program:
        ended = program.end()
    assert ended.out.splitlines() == [f"{[[False, 4 << 20]] * 3} 3"], ended
