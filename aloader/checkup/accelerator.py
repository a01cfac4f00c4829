"""The accelerator, asked for in a process of its own: asking makes a context, which workers must not inherit and which
takes memory of the device."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aloader.checkup.report import Check, ok, problem, warning
from aloader.checkup.words import seconds, size

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None

#: Seconds that the process has: torch is imported, and a context made on the first device.
DEADLINE: Final = 30.0

PINNED: Final = 64 << 20

#: Prints one line of JSON. What fails is in it as text.
_PROGRAM: Final = """
import json, sys, time, warnings
warnings.simplefilter("ignore")
import torch
found = {"devices": [], "error": "", "pinning": "", "seconds": 0}
try:
    if torch.cuda.is_available():
        for number in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(number)
            found["devices"].append([properties.name, properties.total_memory])
        try:
            torch.zeros(1, device="cuda")
            began = time.perf_counter()
            torch.empty(int(sys.argv[1]), dtype=torch.uint8).pin_memory()
            found["seconds"] = time.perf_counter() - began
        except Exception as error:
            found["pinning"] = str(error)[:300]
    else:
        torch.cuda.init()  # says why
except Exception as error:
    found["error"] = str(error)[:300]
print(json.dumps(found))
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and bytes of the devices. `build`: what torch was built for, "" for the CPU alone."""

    build: str
    devices: tuple[tuple[str, int], ...] = ()
    error: str = ""
    pinning: str = ""  # what went wrong
    seconds: float = 0.0  # for page-locking 64 MiB
    memlock: int | None = None  # RLIMIT_MEMLOCK, None for no limit
    other: str = ""  # an accelerator of another kind
    hardware: bool = field(default=False)  # there is one, whatever torch makes of it


def look(deadline: float = DEADLINE) -> Facts:
    import torch

    other = _other()
    build = torch.version.cuda or torch.version.hip or ""
    if not build:
        return Facts("", other=other, hardware=_hardware())
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(PINNED)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=deadline,
            check=False,
        )
    except subprocess.TimeoutExpired:  # which would show the whole program
        return Facts(build, error=f"no answer after {seconds(deadline)}", hardware=_hardware())
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return Facts(build, error=lines[-1][:300], hardware=_hardware())
    found: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    devices = tuple((name, nbytes) for name, nbytes in found["devices"])
    rest = found["error"], found["pinning"], found["seconds"], _memlock(), other, _hardware()
    return Facts(build, devices, *rest)


def judge(facts: Facts) -> Iterator[Check]:
    if not facts.devices:
        yield _none(facts)
        return
    names = [name for name, _ in facts.devices]
    text = f"{len(names)} × {names[0]}" if len(set(names)) == 1 and len(names) > 1 else ", ".join(names)
    text += f", {size(max(nbytes for _, nbytes in facts.devices))}"
    text += " each" if len(names) > 1 else ""
    yield ok("accelerator", f"{text}; torch is built for CUDA {facts.build}")
    limit = "any number of bytes" if facts.memlock is None else size(facts.memlock)
    if facts.pinning:
        why = f"memory cannot be page-locked: {facts.pinning}. RLIMIT_MEMLOCK allows {limit}"
        remedy = "ulimit -l unlimited (docker run --ulimit memlock=-1); until then pin_memory=False"
        yield problem("page-locking", why, remedy)
    else:
        text = f"{size(PINNED)} in {seconds(facts.seconds)}; RLIMIT_MEMLOCK allows {limit}"
        yield ok("page-locking", text)


def _none(facts: Facts) -> Check:
    if facts.other:
        return ok("accelerator", f"{facts.other}: batches are handed over in ordinary memory")
    if facts.hardware and not facts.build:
        text = "there is an NVIDIA device, and torch is built for the CPU alone"
        return warning("accelerator", text, "install a build of torch for CUDA, if the device is to be used")
    if facts.hardware or (facts.error and "NVIDIA driver" not in facts.error):
        remedy = "nvidia-smi; docker run --gpus all; CUDA_VISIBLE_DEVICES; a driver that is new enough for torch"
        text = f"torch (for CUDA {facts.build}) finds none: {facts.error or 'it does not say why'}"
        return warning("accelerator", text, remedy)
    return ok("accelerator", "no accelerator here: pin_memory has no effect")


# -- looking ----------------------------------------------------------------------------------------------------------


def _hardware() -> bool:
    """Whether the driver shows a device."""
    import glob

    return bool(glob.glob("/dev/nvidia[0-9]*"))


def _other() -> str:
    import torch

    kinds = {"mps": getattr(torch.backends, "mps", None), "xpu": getattr(torch, "xpu", None)}
    return next((kind for kind, module in kinds.items() if module is not None and module.is_available()), "")


def _memlock() -> int | None:
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else int(soft)
