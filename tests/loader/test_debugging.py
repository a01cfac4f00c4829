"""Breakpoints in workers stop at the terminal of the program, one worker at a time, with deadlines stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from .programs import Program
from .terminals import AtTerminal

pytestmark = [pytest.mark.usefixtures("nothing_left"), pytest.mark.slow]

HEAD = """
import asyncio, pdb, sys, time
from aloader import DataLoader

class Data:
    def __init__(self, stops, how=breakpoint):
        self.stops, self.how = stops, how
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if index in self.stops:
            self.how()
        return index

def go(loader, raised=()):
    batches = iter(loader)
    while True:
        try:
            print(f"batch {next(batches).tolist()}", flush=True)
        except StopIteration:
            break
        except raised:
            raise
        except Exception as error:
            print("error", type(error).__name__, error, *getattr(error, "__notes__", ()), flush=True)
    print("done", flush=True)
"""


@pytest.mark.parametrize("how", ["breakpoint()", "pdb.set_trace(header='look here')"])
def test_a_breakpoint_in_a_worker_stops_at_the_terminal(tmp_path, how):
    body = f"go(DataLoader(Data([3], lambda: [{how}, 0]), batch_size=2, num_workers=2))"
    with AtTerminal(tmp_path, HEAD + body) as terminal:
        told = terminal.expect("(Pdb worker 1, sample 3) ")
        assert "program.py" in told
        assert ("look here" in told) is ("look here" in how)
        terminal.type("up")
        terminal.expect("(Pdb worker 1, sample 3) ")
        terminal.type("p index * 1000 + 7")
        assert "3007" in terminal.expect("(Pdb worker 1, sample 3) ")
        terminal.type("c")
        terminal.expect("done")
        assert terminal.end() == (0, "\n")
    assert [line for line in terminal.seen.splitlines() if line.startswith("batch")] == [
        f"batch [{first}, {first + 1}]" for first in range(0, 8, 2)
    ]


def test_two_workers_have_the_terminal_one_after_the_other(tmp_path):
    with AtTerminal(tmp_path, HEAD + "go(DataLoader(Data([0, 2]), batch_size=2, num_workers=2))") as terminal:
        terminal.expect("(Pdb worker ")
        first = terminal.expect(", sample ")
        sample = {"0": "0", "1": "2"}
        terminal.expect(f"{sample[first]}) ")
        for _ in range(3):
            terminal.type("p 'mine', index")
            assert f"('mine', {sample[first]})" in terminal.expect(f"(Pdb worker {first}, sample {sample[first]}) ")
        terminal.type("c")
        second = str(1 - int(first))
        between = terminal.expect(f"(Pdb worker {second}, sample {sample[second]}) ")
        assert "(Pdb" not in between
        terminal.type("c")
        terminal.expect("done")
        assert terminal.end()[0] == 0


@pytest.mark.parametrize("kind", ["for", "async for"])
def test_no_deadline_passes_while_somebody_debugs_but_one_does_afterwards(tmp_path, kind):
    body = """
def stop():
    breakpoint()
    if sys._getframe(1).f_locals["index"] == 6:
        time.sleep(20)
loader = DataLoader(Data([3, 6], stop), batch_size=2, num_workers=1, timeout=1)
async def main():
    async for batch in loader:
        print(f"batch {batch.tolist()}", flush=True)
try:
    ITERATE
except RuntimeError as error:
    print(error, "END")
loader.close()
"""
    how = "asyncio.run(main())" if kind == "async for" else "go(loader, RuntimeError)"
    with AtTerminal(tmp_path, HEAD + body.replace("ITERATE", how)) as terminal:
        terminal.expect("sample 3) ")
        time.sleep(3)  # sleep: the user thinks, for longer than the timeout
        terminal.type("c")
        told = terminal.expect("batch [2, 3]")
        assert "timed out" not in told
        if "sample 6) " not in told:  # the worker may have come to it before the batch was printed
            terminal.expect("sample 6) ")
        time.sleep(1.5)  # sleep: again
        terminal.type("c")
        told = terminal.expect("END")
        assert "timed out after 1 seconds" in told
        assert "in stop\n" in told
        assert terminal.end()[0] == 0


def test_quit_fails_the_sample_and_not_the_worker(tmp_path):
    with AtTerminal(tmp_path, HEAD + "go(DataLoader(Data([3]), batch_size=2, num_workers=1))") as terminal:
        terminal.expect("sample 3) ")
        terminal.type("q")
        told = terminal.expect("batch [4, 5]")
        assert "error BdbQuit the debugger in worker 0 was left with `quit`" in told
        assert "sample 3" in told
        terminal.expect("done")
        assert terminal.end()[0] == 0


def test_stepping_out_of_a_sample_gives_the_terminal_back(tmp_path):
    """Who steps on and on stops in the next sample of that worker; the other worker has had its turn meanwhile."""
    with AtTerminal(tmp_path, HEAD + "go(DataLoader(Data([0, 1]), batch_size=1, num_workers=2))") as terminal:
        met = set()
        for _ in range(12):
            terminal.expect("(Pdb worker ")
            met.add(terminal.expect(", sample "))
            terminal.expect(") ")
            if len(met) == 2:
                break
            terminal.type("n")
        assert met == {"0", "1"}
        assert "aloader/worker" not in terminal.seen
        while True:
            terminal.type("c")
            seen = len(terminal.seen)
            try:
                terminal.expect("(Pdb worker ")
            except AssertionError:
                break
            assert len(terminal.seen) > seen
        assert terminal.end()[0] == 0
        assert "done" in terminal.seen


def test_coroutines_and_threads_are_debugged_too(tmp_path):
    body = """
class Async(Data):
    async def __getitem__(self, index):
        await asyncio.sleep(0)
        if index == 3:
            breakpoint()
            await asyncio.sleep(0)
            index += 0
        return index
go(DataLoader(Async([]), batch_size=2, num_workers=1))
go(DataLoader(Data([3]), batch_size=2, num_workers=1, concurrency=2))
"""
    with AtTerminal(tmp_path, HEAD + body) as terminal:
        for command in ("n", "n", "p index", "c"):
            terminal.expect("(Pdb worker 0, sample 3) ")
            terminal.type(command)
        terminal.expect("done")
        terminal.expect("(Pdb worker 0, sample 3) ")
        terminal.type("c")
        terminal.expect("done")
        assert terminal.end() == (0, "\n")


def test_ctrl_c_ends_the_program_and_leaves_nothing(tmp_path):
    body = """
with DataLoader(Data([3]), batch_size=2, num_workers=2) as loader:
    go(loader)
"""
    with AtTerminal(tmp_path, HEAD + body) as terminal:
        terminal.expect("sample 3) ")
        os.killpg(terminal.process.pid, signal.SIGINT)
        told = terminal.end()
        assert told[0] == -signal.SIGINT, told
        assert "KeyboardInterrupt" in told[1]


def test_closing_waits_for_the_debugger(tmp_path):
    body = """
with DataLoader(Data([3]), batch_size=2, num_workers=1) as loader:
    batches = iter(loader)
    print("batch", next(batches).tolist())
    while not loader._runtime._in_debugger():
        time.sleep(0.01)
print("closed")
"""
    with AtTerminal(tmp_path, HEAD + body) as terminal:
        terminal.expect("sample 3) ")
        time.sleep(1)  # sleep: the user thinks, for longer than the grace of closing
        assert "closed" not in terminal.seen
        terminal.type("p index + 70")
        assert "73" in terminal.expect("sample 3) ")
        terminal.type("c")
        terminal.expect("closed")
        assert terminal.end()[0] == 0


def test_a_worker_that_dies_in_the_debugger_holds_nobody_up(tmp_path):
    body = """
with DataLoader(Data([3]), batch_size=2, num_workers=1) as loader:
    batches = iter(loader)
    print(f"batch {next(batches).tolist()}")
    patience = time.monotonic() + 10  # the worker may be killed before anybody looks
    while not loader._runtime._in_debugger() and time.monotonic() < patience:
        time.sleep(0.01)
    print("closing", flush=True)
print("closed")
"""
    with AtTerminal(tmp_path, HEAD + body) as terminal:
        terminal.expect("sample 3) ")
        terminal.type("import os; print('pid', os.getpid(), 'end')")
        pid = int(terminal.expect("end\n").split("pid ")[-1])
        terminal.expect("sample 3) ")
        os.kill(pid, signal.SIGKILL)
        terminal.expect("closed")
        assert terminal.end()[0] == 0


def test_without_a_terminal_the_error_says_what_to_do(tmp_path):
    with Program(tmp_path, HEAD + "go(DataLoader(Data([3]), batch_size=2, num_workers=1))") as program:
        ended = program.end()
    assert "error RuntimeError a worker has met a breakpoint" in ended.out
    assert "ALOADER_DEBUG=1" in ended.out
    assert ended.out.splitlines()[-1] == "done"


def test_input_from_a_pipe_is_shared_line_by_line(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(HEAD + "go(DataLoader(Data([1, 3]), batch_size=2, num_workers=2))")
    done = subprocess.run(
        [sys.executable, str(script)],
        input="p index + 500\nc\np index + 500\nc\n",
        text=True,
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert "501" in done.stdout
    assert "503" in done.stdout
    assert done.stdout.splitlines()[-1] == "done"


@pytest.mark.parametrize(("hook", "said"), [("0", None), ("program.hook", "hook at 3 reads hello")])
def test_pythonbreakpoint_is_respected(tmp_path, hook, said):
    (tmp_path / "hooks.py").write_text(
        "import sys\ndef hook():\n"
        "    frame = sys._getframe(1)\n"
        "    sys.stdout.write(f'hook at {frame.f_locals[\"index\"]} reads {input()}\\n')\n    sys.stdout.flush()\n"
    )
    body = "go(DataLoader(Data([3]), batch_size=2, num_workers=1))"
    env = {"PYTHONBREAKPOINT": hook.replace("program", "hooks")}
    with AtTerminal(tmp_path, f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n" + HEAD + body, **env) as terminal:
        if said:
            terminal.type("hello")
            terminal.expect(said)
        terminal.expect("done")
        assert terminal.end() == (0, "\n")
    assert "(Pdb" not in terminal.seen
