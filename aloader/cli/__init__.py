"""The command `aloader`: `aloader warm URL` reads a data set once, `aloader doctor` looks for what may be wrong here.

Errors are one sentence on standard error, and a status that is not 0. What a command needs is imported when it is
given: `aloader doctor` is for machines on which something cannot be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Final

from aloader.storage.wrappers.digests import CHECKS

#: What is said in a sentence: whose doing it was is in it.
SAID: Final = (OSError, ValueError, TypeError, ImportError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status: 0 if all is well, 1 if something failed, 2 for a wrong command line."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.act(options)
        return status
    except SAID as error:
        print(f"aloader {options.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"aloader {options.command}: interrupted", file=sys.stderr)
        return 130


def _warm(options: argparse.Namespace) -> int:
    from aloader.cli.warm import warm

    return warm(options)


def _doctor(options: argparse.Namespace) -> int:
    from aloader.checkup.doctor import doctor

    report = doctor(options.url)
    print(json.dumps(report.as_dict(), indent=2) if options.json else report)
    return 0 if report.ok else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aloader", description="An asyncio data loader for PyTorch.")
    parser.add_argument("--version", action="version", version=f"aloader {version('aloader')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_doctor(commands)
    _add_warm(commands)
    return parser


def _add_doctor(commands: Any) -> None:
    command = commands.add_parser(
        "doctor",
        help="look at this machine for what may stand in a loader's way",
        description="Looks at everything on this machine that loaders depend on: versions, memory, limits, CPUs, what "
        "the kernel allows; starts a worker; and reads an object from URL, if one is given. Says what to change. The "
        "status is 1 if there is a problem.",
    )
    command.add_argument("url", metavar="URL", nargs="?", help="data to read: s3://bucket/prefix, a path, ...")
    command.add_argument("--json", action="store_true", help="for programs")
    command.set_defaults(act=_doctor)


def _add_warm(commands: Any) -> None:
    command = commands.add_parser(
        "warm",
        help="read a data set once, into a cache or into the system's memory",
        description="Reads all objects of a place once: into the cache that training will use, or, without --cache, "
        "files of a disk or of NFS into the system's own cache of files.",
    )
    command.add_argument("url", metavar="URL", help="s3://bucket/prefix, file:///folder, a path, ...")
    command.add_argument("--cache", metavar="FOLDER", help="the folder of the cache")
    command.add_argument("--limit", metavar="SIZE", default="100GiB", help="room that the cache has (default: 100GiB)")
    command.add_argument("--prefix", default="", metavar="TEXT", help="only keys that begin with this")
    command.add_argument("--suffix", action="append", metavar="TEXT", help="only keys that end with this (repeatable)")
    command.add_argument("--manifest", metavar="FILE", help="read the listing from here, or write it if there is none")
    command.add_argument("--verify", choices=CHECKS, help="what of the answers is compared, as in open_store")
    command.add_argument("--concurrency", type=_number, default=64, metavar="N", help="objects at once (default: 64)")
    command.set_defaults(act=_warm)


def _number(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"a number of at least 1, not {text!r}")
    return number
