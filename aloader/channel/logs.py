"""Logging in a worker as in the parent: levels, and the handlers of `logging.basicConfig`, of consoles and of files.

A fork would have copies of all handlers. A handler that writes to standard error or output, or appends to a file, is
made again in the worker: its level, formatter and filters go with it. Others cannot be: a file that was opened anew
(mode "w") has a position that two processes would have to share, a socket or a queue belongs to one process. They are
named (`lost`), unless they only keep what they get in memory.

Libraries have handlers of their own, which they make when they are imported. So what belongs to a logger with a
module's name is set only after the dataset has been loaded, and only if that module is there by then: otherwise every
line would come twice.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import cloudpickle

_STREAMS: Final = ("stderr", "stdout")


class Output(NamedTuple):
    """A handler, taken apart. `target`: a stream's name, or a file's path."""

    target: str
    is_file: bool
    encoding: str | None
    errors: str | None
    level: int
    name: str | None
    rest: bytes  # formatter and filters, pickled by themselves: only the parent's path may lead to their classes


# -- in the parent ---------------------------------------------------------------------------------------------------


def capture() -> dict[str, Any]:
    """Levels and handlers of all loggers; can be pickled."""
    loggers = _loggers()
    return {
        "disabled": logging.root.manager.disable,
        "levels": {name: logger.level for name, logger in loggers.items() if logger.level},
        "closed": [name for name, logger in loggers.items() if not logger.propagate],
        "outputs": {name: outputs for name, logger in loggers.items() if (outputs := _outputs(logger))},
        "of_modules": {name for name in loggers if _top(name) in sys.modules},
    }


def lost() -> list[str]:
    """The handlers that a fork would have and a worker will not, in words. Those of libraries' loggers are theirs."""
    found = []
    for name, logger in _loggers().items():
        if name and _top(name) in sys.modules:
            continue
        whose = f"logger {name!r}" if name else "the root logger"
        found += [
            f"{type(handler).__name__} of {whose}"
            for handler in logger.handlers
            if not _is_in_memory(handler) and _taken_apart(handler) is None
        ]
    return found


def _loggers() -> dict[str, logging.Logger]:
    known = list(logging.root.manager.loggerDict.items())
    return {"": logging.root} | {name: logger for name, logger in known if isinstance(logger, logging.Logger)}


def _top(name: str) -> str:
    return name.partition(".")[0]


def _outputs(logger: logging.Logger) -> list[Output]:
    return [output for handler in logger.handlers if (output := _taken_apart(handler)) is not None]


def _taken_apart(handler: logging.Handler) -> Output | None:
    encoding = errors = None
    if type(handler) is logging.StreamHandler:
        streams = {name: (getattr(sys, name), getattr(sys, f"__{name}__")) for name in _STREAMS}
        target = next((name for name, these in streams.items() if handler.stream in these), "")
    elif type(handler) is logging.FileHandler and "a" in handler.mode:
        target, encoding, errors = handler.baseFilename, handler.encoding, handler.errors
    else:
        return None
    try:
        rest = cloudpickle.dumps((handler.formatter, handler.filters), 5)
    except Exception:
        return None
    is_file = type(handler) is logging.FileHandler
    return Output(target, is_file, encoding, errors, handler.level, handler.name, rest) if target else None


def _is_in_memory(handler: logging.Handler) -> bool:
    if isinstance(handler, logging.FileHandler):
        return handler.baseFilename == os.devnull
    return isinstance(handler, logging.NullHandler) or isinstance(getattr(handler, "stream", None), io.StringIO)


# -- in a worker -----------------------------------------------------------------------------------------------------


def apply(found: dict[str, Any]) -> None:
    """Levels, and the handlers of loggers that are no library's."""
    logging.disable(found["disabled"])
    for name, level in found["levels"].items():
        logging.getLogger(name or None).setLevel(level)
    for name in found["closed"]:
        logging.getLogger(name or None).propagate = False
    _set_outputs(found, {""} | found["outputs"].keys() - found["of_modules"])


def apply_after_loading(found: dict[str, Any]) -> None:
    """The handlers of libraries' loggers, if the libraries are there."""
    _set_outputs(found, {name for name in found["of_modules"] & found["outputs"].keys() if _top(name) in sys.modules})


def _set_outputs(found: dict[str, Any], names: set[str]) -> None:
    for name in names:
        logger = logging.getLogger(name or None)
        others = [handler for handler in logger.handlers if _taken_apart(handler) is None]
        logger.handlers[:] = [*_made(found["outputs"].get(name, [])), *others]


def _made(outputs: list[Output]) -> Iterator[logging.Handler]:
    for output in outputs:
        if output.is_file:
            handler: Any = logging.FileHandler(
                output.target, "a", encoding=output.encoding, errors=output.errors, delay=True
            )
        else:
            handler = logging.StreamHandler(getattr(sys, output.target))
        handler.setLevel(output.level)
        handler.name = output.name
        handler.formatter, handler.filters = cloudpickle.loads(output.rest)
        yield handler
