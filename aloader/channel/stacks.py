"""Where code stands: frames as they cross the process border, and as people read them.

A worker's threads are dumped by `faulthandler`, whose text is read here; its tasks by `worker.tasks`, as JSON. What is
shown is the user's part: frames of the machinery between the template and `dataset[index]`, of asyncio and of thread
pools say nothing to anybody.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import linecache
import multiprocessing
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

#: Frames of one stack that are shown, the innermost; and stacks of one worker.
MOST_FRAMES: Final = 16
MOST_STACKS: Final = 6

_FRAME: Final = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.+)')
_ESCAPED: Final = re.compile(r"\\(?:x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})")
_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: Below these a sample begins: what lies further out than the last of them is not the user's.
_SERVING: Final = tuple(os.path.join(_PACKAGE, name) + os.sep for name in ("worker", "pool"))
_COLLATION: Final = os.path.join(_PACKAGE, "worker", "collation.py")
_SILENT: Final = (
    *_SERVING,
    os.path.join(_PACKAGE, "channel") + os.sep,
    *(str(module.__path__[0]) + os.sep for module in (asyncio, concurrent.futures, multiprocessing)),
    contextlib.__file__,
    threading.__file__,
    "<frozen ",
)


class Frame(NamedTuple):
    """One call: file, line (0 where it is not known), name of the function."""

    file: str
    line: int
    name: str


class Stack(NamedTuple):
    """The frames of a thread or task, outermost first. `positions`: the samples of a ticket that stand there."""

    frames: tuple[Frame, ...]
    positions: tuple[int, ...] = ()


def parse(dump: bytes) -> list[Stack]:
    """The threads in what `faulthandler` wrote, the one that was running first; half a line at the end is dropped."""
    stacks: list[tuple[bool, list[Frame]]] = []
    for line in dump.decode("utf-8", "replace").splitlines():
        if "(most recent call first):" in line:
            stacks.append((line.startswith(("Current thread", "Stack")), []))
        elif (match := _FRAME.fullmatch(line)) is not None and stacks:
            number = int(match["line"]) if match["line"].isdigit() else 0
            stacks[-1][1].append(Frame(_unescaped(match["file"]), number, _unescaped(match["name"])))
    stacks.sort(key=lambda found: not found[0])
    return [Stack(tuple(reversed(frames))) for _, frames in stacks]


def _unescaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[0][2:], 16)), text)


def pack(stacks: Sequence[Stack], most: int) -> bytes:
    """Stacks as JSON of at most `most` bytes: the last ones are left out where it would be more."""
    while True:
        data = json.dumps(stacks).encode()
        if len(data) <= most:
            return data
        stacks = stacks[:-1]


def unpack(data: bytes) -> list[Stack]:
    """What `pack` wrote."""
    return [Stack(tuple(Frame(*frame) for frame in frames), tuple(positions)) for frames, positions in json.loads(data)]


def users(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The user's part of a stack: from `dataset[index]` (or the like) on, without what is only in between."""
    begin = 0
    for place, frame in enumerate(frames):
        if frame.file.startswith(_SERVING) and frame.file != _COLLATION:
            begin = place + 1
    return tuple(
        frame
        for frame in frames[begin:]
        if not frame.file.startswith(_SILENT) and (frame.file, frame.name) != ("<string>", "<module>")
    )


def text(frames: Sequence[Frame]) -> str:
    """Frames in the form of a traceback, the most recent call last."""
    return "\n".join(_lines(frames))


def _lines(frames: Sequence[Frame]) -> Iterator[str]:
    if len(frames) > MOST_FRAMES:
        yield f"  [… {len(frames) - MOST_FRAMES} calls …]"
    for file, line, name in frames[-MOST_FRAMES:]:
        yield f'  File "{file}", line {line}, in {name}'
        source = linecache.getline(file, line).strip()
        if source:
            yield f"    {source}"


def different(stacks: Iterable[Stack]) -> list[Stack]:
    """The user's parts of stacks, each place once with all samples that stand there; empty ones that name samples
    come last, other empty ones not at all."""
    positions: dict[tuple[Frame, ...], list[int]] = {}
    for stack in stacks:
        positions.setdefault(users(stack.frames), []).extend(stack.positions)
    found = [Stack(frames, tuple(where)) for frames, where in positions.items() if frames or where]
    found.sort(key=lambda stack: not stack.frames)
    return found[:MOST_STACKS]
