"""Versions: Python's, torch's, numpy's, of what this package needs, and of what its extras bring."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from aloader.checkup.report import Check, ok, problem, warning

OLDEST_PYTHON: Final = (3, 11)
OLDEST_TORCH: Final = (2, 4)

#: What each extra installs: the module that is imported, and the name under which it is installed.
EXTRAS: Final[Mapping[str, Mapping[str, str]]] = {
    "s3": {"aiobotocore": "aiobotocore", "httptools": "httptools"},
    "http": {"aiohttp": "aiohttp"},
    "obstore": {"obstore": "obstore"},
    "fsspec": {"fsspec": "fsspec"},
    "images": {"PIL": "pillow"},
    "progress": {"tqdm": "tqdm"},
    "accelerate": {"accelerate": "accelerate"},
    "transformers": {"transformers": "transformers"},
}


@dataclass(frozen=True, slots=True)
class Facts:
    """Versions by name, "" for what is not there. `torch` and `numpy` are what importing them gave, or the error."""

    python: tuple[int, ...]
    system: str
    own: str
    torch: str
    torch_error: str
    numpy: str
    numpy_error: str
    uvloop: str
    uvloop_error: str
    extras: Mapping[str, Mapping[str, str]]
    platform: str = "linux"


def look() -> Facts:
    """Imports torch, numpy and uvloop; of the rest, only whether it is installed."""
    torch, torch_error = _imported("torch")
    numpy, numpy_error = _imported("numpy")
    uvloop, uvloop_error = _imported("uvloop")
    if torch and numpy and not numpy_error:
        numpy_error = _apart()
    extras = {extra: {name: _installed(*each) for each in parts.items() for name in each[1:]}
              for extra, parts in EXTRAS.items()}  # fmt: skip
    own = _version("aloader")
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    versions = torch, torch_error, numpy, numpy_error, uvloop, uvloop_error
    return Facts(sys.version_info[:3], system, own, *versions, extras, sys.platform)


def judge(facts: Facts, extra: str = "") -> Iterator[Check]:
    """`extra`: the one that is needed for what was asked for, "" for none."""
    yield _python(facts)
    yield _torch(facts)
    yield _numpy(facts)
    yield _uvloop(facts)
    yield _extras(facts, extra)


def extra_for(url: str) -> str:
    """The extra that the store of a URL needs."""
    scheme, mark, _ = url.partition("://")
    if not mark or scheme in ("file", "memory"):
        return ""
    return {"s3": "s3", "http": "http", "https": "http"}.get(scheme, "fsspec")


# -- judging ----------------------------------------------------------------------------------------------------------


def _python(facts: Facts) -> Check:
    text = f"{'.'.join(map(str, facts.python))} on {facts.system}, aloader {facts.own or 'not installed'}"
    if facts.python < OLDEST_PYTHON:
        return problem("python", text, "Python 3.11 or newer is needed")
    if facts.platform == "win32":
        return warning("python", text, "there are no worker processes on Windows: num_workers=0, or Linux (WSL)")
    if not facts.platform.startswith("linux"):
        return warning("python", text, "only Linux has the fast start of workers; here they are spawned, untested")
    return ok("python", text)


def _torch(facts: Facts) -> Check:
    if facts.torch_error:
        remedy = "pip install torch, in a build for this Python and this machine's drivers"
        return problem("torch", f"cannot be imported: {facts.torch_error}", remedy)
    if _numbers(facts.torch) < OLDEST_TORCH:
        return problem("torch", facts.torch, 'torch 2.4 or newer is needed: pip install --upgrade "torch>=2.4"')
    return ok("torch", facts.torch)


def _numpy(facts: Facts) -> Check:
    if not facts.numpy:
        return problem("numpy", f"cannot be imported: {facts.numpy_error}", "pip install numpy")
    if facts.numpy_error:
        remedy = "torch and numpy are built for each other's major version: upgrade torch, or pip install 'numpy<2'"
        return problem("numpy", f"{facts.numpy}, which torch {facts.torch} cannot use: {facts.numpy_error}", remedy)
    return ok("numpy", facts.numpy)


def _uvloop(facts: Facts) -> Check:
    if facts.uvloop:
        return ok("uvloop", f"{facts.uvloop}: workers of async datasets run on it")
    text = f"cannot be imported ({facts.uvloop_error}): workers run on asyncio's own loop, which is slower"
    return warning("uvloop", text, "pip install uvloop")


def _extras(facts: Facts, needed: str) -> Check:
    there, missing = [], []
    for extra, parts in facts.extras.items():
        if all(parts.values()):
            there.append(f"{extra} ({', '.join(f'{name} {version}' for name, version in parts.items())})")
        else:
            missing.append(extra)
    if needed in missing:
        lacking = " and ".join(name for name, version in facts.extras[needed].items() if not version)
        text = f"{needed} is not installed ({lacking} is missing), and the URL needs it"
        return problem("extras", text, f'pip install "aloader[{needed}]"')
    text = ", ".join(there) or "none"
    return ok("extras", text + (f"; not installed: {', '.join(missing)}" if missing else ""))


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int("".join(filter(str.isdigit, part)) or 0) for part in parts)


# -- looking ----------------------------------------------------------------------------------------------------------


def _imported(name: str) -> tuple[str, str]:
    """Version and error of importing it."""
    try:
        module = importlib.import_module(name)
    except Exception as error:  # what importing native code may raise is of every kind
        return "", " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return str(getattr(module, "__version__", "of unknown version")), ""


def _apart() -> str:
    """What torch says of an array of numpy's."""
    import numpy as np
    import torch

    try:
        torch.from_numpy(np.zeros(1)).numpy()
    except Exception as error:
        return " ".join(f"{type(error).__name__}: {error}".split())[:300]
    return ""


def _installed(module: str, name: str) -> str:
    """The version of what is installed and can be found; it is not imported."""
    return _version(name) if importlib.util.find_spec(module) is not None else ""


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""
