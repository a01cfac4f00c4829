"""What the operating system knows of an error and does not say: for whoever reads the note of a worker's fault.

Asked where the error was raised, in the worker: its user, its limits and its folders are what counts. Nothing in here
may fail, and nothing may take long: only the state of this process and of named files is looked at.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE
from typing import Any, Final

try:
    import grp
    import pwd
    import resource
except ImportError:  # Windows, where there are no workers
    grp = pwd = resource = None  # type: ignore[assignment]

_DEPTH: Final = 8  # errors that led to one another

_REMEDY: Final = "Change owner or mode (chown, chmod), or run the program as somebody who may"


def hint(error: BaseException) -> str:
    """What helps to understand this error, or one that led to it; "" where there is nothing to say."""
    for one in _chain(error):
        try:
            text = _hint(one)
        except Exception:  # a file that has gone meanwhile, a user without a name …
            text = ""
        if text:
            return text
    return ""


def _chain(error: BaseException) -> Iterator[OSError]:
    one: BaseException | None = error
    for _ in range(_DEPTH):
        if one is None:
            return
        if isinstance(one, OSError):
            yield one
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)


def _hint(error: OSError) -> str:
    named = error.filename if isinstance(error.filename, str | bytes | os.PathLike) else None
    path = None if named is None else Path(os.fsdecode(named))
    match error.errno:
        case errno.EACCES | errno.EPERM if path is not None:
            return _of_permission(path)
        case errno.EMFILE:
            return _of_descriptors()
        case errno.ENOSPC | errno.EDQUOT:
            return _of_space(path)
    return ""


# -- who may do what -------------------------------------------------------------------------------------------------


def _of_permission(path: Path) -> str:
    groups = sorted({*os.getgroups(), os.getegid()})
    me = f"this worker runs as {_user(os.geteuid())} with the groups {', '.join(map(_group, groups))}{_umask()}"
    found, status = _deepest(path)
    what = _owner(status)
    if found == path.absolute():
        return f"{me}; {found} belongs to {what}. {_REMEDY}"
    return f"{me}; of {path}, it sees no more than {found}, which belongs to {what}. {_REMEDY}"


def _deepest(path: Path) -> tuple[Path, os.stat_result]:
    """The file, or the deepest folder on the way to it that can be looked at."""
    path = path.absolute()
    for one in (path, *path.parents):
        try:
            return one, one.stat()
        except OSError:
            continue
    raise FileNotFoundError(path)


def _owner(status: os.stat_result) -> str:
    mode = S_IMODE(status.st_mode)
    return f"{_user(status.st_uid)} and {_group(status.st_gid)}, mode {mode:04o}"


def _user(uid: int) -> str:
    return f"uid {uid}{_name(pwd, 'getpwuid', 'pw_name', uid)}"


def _group(gid: int) -> str:
    return f"gid {gid}{_name(grp, 'getgrgid', 'gr_name', gid)}"


def _name(database: Any, ask: str, field: str, number: int) -> str:
    try:
        return f" ({getattr(getattr(database, ask)(number), field)})"
    except (KeyError, AttributeError):  # containers often have users without a name
        return ""


def _umask() -> str:
    """Read, not set and restored: another thread may be making a file."""
    try:
        with open("/proc/self/status") as file:
            return next(f" and the umask {int(line.split()[1], 8):03o}" for line in file if line.startswith("Umask:"))
    except (OSError, StopIteration):
        return ""


# -- what has run out ------------------------------------------------------------------------------------------------


def _of_descriptors() -> str:
    soft, hard = (_limit(n) for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    return (
        f"this worker may have {soft} files open (`ulimit -n`; its hard limit is {hard}), and they are used up. If the "
        "dataset opens a file for each sample, close it (`with open(...)`); else raise the limit in the shell that "
        f"starts the program: `ulimit -n {hard}`"
    )


def _limit(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else str(number)


def _of_space(path: Path | None) -> str:
    folders = [_deepest(path)[0]] if path is not None else [Path(tempfile.gettempdir()), Path("/dev/shm")]
    free = [f"{folder} has {_free(folder)} free" for folder in folders if folder.exists()]
    return f"{' and '.join(free)}: make room there, or give TMPDIR (or the dataset) a larger folder"


def _free(folder: Path) -> str:
    status = os.statvfs(folder)
    nbytes, files = status.f_bavail * status.f_frsize, status.f_favail
    return f"{nbytes} bytes" + (" and no inodes" if status.f_files and not files else "")
