"""Python processes that need not import torch: they are forked from one that has, and keeps warm for it.

Importing torch takes a processor more than a second, and most tests start an interpreter that does: the template of
their loader's workers, or a small program that they watch. `Warmth.subprocess` stands for the module of that name where
such commands are run: `[sys.executable, *flags, "-c" and code, or a script, *arguments]`. What it starts is a child of
this process, with the command's arguments, environment, folder, session and descriptors, and ends as an interpreter
does. torch and some modules of aloader have been imported in it, and nothing has been done with them.

Not as after a real start are: the command line that `ps` shows, the hash seed, ignored signals and limits of resources
that it would have inherited. Each set of flags, and of variables that are read while imports go on, has a keeper of its
own. What is no such command is started for real; so is everything in tests that are marked `cold`, in a fork of this
process, and under `pytest --cold`.

    here ──socket──▶ keeper ──fork──▶ (one that goes at once) ──fork──▶ the process

Its parent has gone, so it is given to the next subreaper: that is us, as long as it takes. Whatever else loses its
parent in these milliseconds comes to us too, and is a zombie here: tests that kill templates are `cold`.

What `Warmth.programs` starts, which stands for the same module, has a keeper of its own, forked before its first line:
the templates of the loaders in it are warm, too. That is one child more than it would have, in a session of its own.
This file is also what the keeper runs: only the standard library is imported here.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import gc
import importlib
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any, Final

_PR_SET_CHILD_SUBREAPER: Final = 36

_KEEPER: Final = """
import runpy, sys
exec(runpy.run_path(sys.argv[1])["keep"](*sys.argv[2:]))
"""

#: Variables that tell whose a process is, in `/proc/<pid>/environ`: a fork writes its own over those of the keeper.
_TOKENS: Final = ("ALOADER_TEST_TOKEN", "ALOADER_PROGRAM_TOKEN")
_NO_TOKEN: Final = "0" * 32

#: Beginnings of the variables that are read while an interpreter starts and torch is imported.
_READ_AT_START: Final = ("PYTHON", "LD_", "OMP_", "GOMP_", "MKL_", "OPENBLAS_", "TORCH_", "LC_", "LANG")

#: What a keeper is asked for: the command, and what it inherits from this process. "numbers" are those that the
#: descriptors get which come with it.
Request = dict[str, Any]

#: So many keepers at a time, of some hundred MB each.
_KEPT: Final = 3


class Warmth:
    """The keepers: one for every set of flags and variables that a command has come with."""

    def __init__(self, *modules: str) -> None:
        self.cold = False  # True: everything is started for real
        self._modules = modules
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._keepers: dict[tuple[object, ...], Keeper] = {}
        self.subprocess = _module(self.start)
        self.programs = _module(functools.partial(self.start, keeping=True))

    def close(self) -> None:
        """End the keepers. What they have forked goes on."""
        while self._keepers:
            self._keepers.popitem()[1].close()

    def processes(self) -> set[int]:
        """The keepers."""
        return {keeper.process.pid for keeper in self._keepers.values()}

    def descriptors(self) -> set[int]:
        """Those of this process by which it talks to them."""
        return {keeper.end.fileno() for keeper in self._keepers.values()}

    def start(
        self, command: list[str], environment: dict[str, str], descriptors: list[int], settings: Request, *,
        keeping: bool = False,
    ) -> int | None:  # fmt: skip
        """The id of the process; or None: it must be started for real."""
        request = _request(command, environment, settings)
        if self.cold or request is None or os.getpid() != self._pid:
            return None
        with self._lock:
            pid = self._keeper(request["flags"], environment).fork(request | {"keeping": keeping}, descriptors)
        assert pid is not None, "a keeper has died: what it said before is in the output"
        return pid

    def _keeper(self, flags: Sequence[str], environment: dict[str, str]) -> Keeper:
        kind = (*flags, *sorted(variable for variable in environment.items() if _read_at_start(variable[0])))
        keeper = self._keepers.pop(kind, None) or Keeper.started(flags, environment, self._modules)
        self._keepers[kind] = keeper  # the last is the one that was used last
        while len(self._keepers) > _KEPT:
            self._keepers.pop(next(iter(self._keepers))).close()
        return keeper


class Keeper:
    """A process that has imported the modules, and forks; `end` is this side's of the socket to it."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self.process: subprocess.Popen[bytes]

    @classmethod
    def started(cls, flags: Sequence[str], environment: dict[str, str], modules: Sequence[str]) -> Keeper:
        """A new one."""
        end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        keeper = cls(end)
        with theirs:
            keeper.process = subprocess.Popen(
                [sys.executable, *flags, "-c", _KEEPER, __file__, str(theirs.fileno()), json.dumps(sys.path), *modules],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment | dict.fromkeys(_TOKENS, _NO_TOKEN),
                cwd=os.sep,
                start_new_session=True,
            )
        end.recv(1)  # it has imported everything
        return keeper

    def close(self) -> None:
        self.end.close()
        self.process.kill()
        self.process.wait()

    def fork(self, request: Request, descriptors: Sequence[int]) -> int | None:
        """The id of a child of this process that does what the request says. None if the keeper has died."""
        try:
            with _given_orphans():
                socket.send_fds(self.end, [pickle.dumps(request)], descriptors)
                return int(self.end.recv(100) or 0) or None
        except ConnectionError:
            return None


class _Own:
    """In a program: the keeper that it has been given for the templates of its loaders."""

    def __init__(self, number: int) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._number = number  # of the socket: an object would have to be closed, or be said at the program's end
        self._environment = self._read(os.environ)

    def start(
        self, command: list[str], environment: dict[str, str], descriptors: list[int], settings: Request
    ) -> int | None:
        """As `Warmth.start`."""
        request = _request(command, environment, settings)
        if request is None or os.getpid() != self._pid or self._read(environment) != self._environment:
            return None
        with self._lock:
            end = socket.socket(fileno=self._number)
            try:
                return Keeper(end).fork(request, descriptors)
            finally:
                end.detach()

    def _read(self, environment: Mapping[str, str]) -> dict[str, str]:
        """What an interpreter reads, but for the numbers of threads: workers set theirs."""
        return {k: v for k, v in environment.items() if _read_at_start(k) and not k.endswith("_THREADS")}


def _module(start: Callable[..., int | None]) -> SimpleNamespace:
    """What stands for the module `subprocess`, and starts by this function what it can start."""
    popen = type("Popen", (_Popen,), {"start": staticmethod(start)})
    return SimpleNamespace(**vars(subprocess) | {"Popen": popen, "run": functools.partial(_run, popen)})


class _Popen(subprocess.Popen[Any]):
    """Goes to the keepers with what `Popen` has prepared, by overriding its one step that starts a process."""

    start: Callable[..., int | None]

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
                       env: Any, startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int,
                       c2pread: int, c2pwrite: int, errread: int, errwrite: int, restore_signals: Any, gid: Any,
                       gids: Any, uid: Any, umask: Any, start_new_session: Any, *rest: Any) -> None:  # fmt: skip
        pipes = (p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        standard = [there if there >= 0 else number for number, there in enumerate((p2cread, c2pwrite, errwrite))]
        pid = None
        with contextlib.suppress(FileNotFoundError):  # a working folder that has been deleted
            settings = {
                "folder": os.fspath(cwd or os.getcwd()),
                "session": start_new_session,
                "umask": _umask(),
                "processors": os.sched_getaffinity(0),
                "numbers": [0, 1, 2, *pass_fds],
            }
            environment = dict(os.environ if env is None else env)
            pid = type(self).start(list(args), environment, [*standard, *pass_fds], settings)
        if pid is None:
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell, *pipes,
                restore_signals, gid, gids, uid, umask, start_new_session, *rest)  # fmt: skip
            return
        self.pid, self.warm = pid, True
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _run(
    popen: type[_Popen], command: list[str], *, input: str | None = None, timeout: float | None = None,
    capture_output: bool = False, check: bool = False, **settings: Any,
) -> subprocess.CompletedProcess[Any]:  # fmt: skip
    """`subprocess.run`."""
    if capture_output:
        settings |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        settings["stdin"] = subprocess.PIPE
    with popen(command, **settings) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


@contextlib.contextmanager
def _given_orphans() -> Iterator[None]:
    """Whoever is left by his parent below this process becomes a child of it."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _request(command: Sequence[str], environment: dict[str, str], settings: Request) -> Request | None:
    """None, if the command is not this interpreter with code or a script."""
    if command[0] != sys.executable:
        return None
    flags, rest = [], list(command[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-c":
        flags.append(rest.pop(0))
        if flags[-1] in ("-", "-m"):
            return None
        if flags[-1] in ("-W", "-X"):
            flags.append(rest.pop(0))
    if not rest:
        return None
    code = rest.pop(1) if rest[0] == "-c" else None
    what = {"flags": flags, "code": code, "arguments": rest, "environment": environment, "parent": os.getpid()}
    return settings | what


def _read_at_start(name: str) -> bool:
    return name.startswith(_READ_AT_START) and name != "PYTHONBREAKPOINT"


def _umask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


# -- in the keeper -----------------------------------------------------------------------------------------------------


def keep(number: str, path: str, *modules: str) -> CodeType:
    """Import the modules and fork for every request, to the end. In what has been forked it returns, with its code."""
    own = sys.path[not sys.flags.safe_path :]  # without the folder that this was started in
    sys.path[:] = json.loads(path)  # what is imported here is what would be imported there
    for module in modules:
        importlib.import_module(module)
    sys.path[:] = own
    gc.freeze()  # collections need not go through torch's objects in every fork, nor copy their pages
    end = socket.socket(fileno=int(number))
    end.send(b".")
    return _serve(end)


def _serve(end: socket.socket) -> CodeType:
    """Fork for every request. In what has been forked it returns, with its code."""
    while True:
        packet, descriptors, _, _ = socket.recv_fds(end, 1 << 20, 250)
        if not packet:
            os._exit(0)
        request = pickle.loads(packet)
        if _forked(request["parent"]):
            return _become(request, end, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _forked(parent: int) -> bool:
    """Whether this is a new process, whose parent is that one."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        os.sched_yield()
    if os.getppid() != parent:  # it has been killed meanwhile
        os._exit(1)
    return True


def _become(request: dict[str, Any], end: socket.socket, descriptors: list[int]) -> CodeType:
    """Make this process what a start of the command would have made."""
    answer = _placed(descriptors, request["numbers"], end.detach())
    if request["session"]:
        os.setsid()
    os.umask(request["umask"])
    os.sched_setaffinity(0, request["processors"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _show_tokens(request["environment"])
    for stream, number in ((sys.stdout, 1), (sys.stderr, 2)):
        stream.reconfigure(line_buffering=number == 2 or os.isatty(number))  # type: ignore[union-attr]
    _forget()
    if request.get("keeping") and (keeper := _split()) is not None:
        return _serve(keeper)
    os.write(answer, str(os.getpid()).encode())
    os.close(answer)
    os.chdir(request["folder"])  # what fails from here on ends this process, with a traceback
    return _code(request)


def _split() -> socket.socket | None:
    """None in the program, which goes on. In the keeper that it leaves behind: where its requests come from."""
    launch = importlib.import_module("aloader.pool.launch")
    end, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        theirs.close()
        launch.subprocess = _module(_Own(end.detach()).start)  # type: ignore[attr-defined]
        return None
    end.close()
    nothing = os.open(os.devnull, os.O_RDWR)
    number = _placed([nothing] * 3, [0, 1, 2], theirs.detach())
    os.setsid()
    os.chdir(os.sep)
    _show_tokens({})
    return socket.socket(fileno=number)


def _placed(descriptors: list[int], numbers: list[int], answer: int) -> int:
    """Give the descriptors their numbers and close all others but this one, whose new number is returned."""
    above = max(numbers) + 1
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, above) for descriptor in descriptors]
    answer = fcntl.fcntl(answer, fcntl.F_DUPFD_CLOEXEC, above)
    os.closerange(3, above)
    for descriptor, number in zip(high, numbers, strict=True):
        os.dup2(descriptor, number)
    for other in {int(name) for name in os.listdir("/proc/self/fd")} - {*numbers, answer}:
        with contextlib.suppress(OSError):  # the one that lists them
            os.close(other)
    return answer


def _show_tokens(environment: Mapping[str, str]) -> None:
    """In `/proc/<pid>/environ`, which is the memory that the keeper was started with."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[47]), int(fields[48])  # env_start, env_end
    block = ctypes.string_at(begin, end - begin)
    for name in _TOKENS:
        at = begin + block.index(f"{name}=".encode()) + len(name) + 1
        token = environment.get(name, _NO_TOKEN).encode()
        assert len(token) == len(_NO_TOKEN)
        ctypes.memmove(at, token, len(token))


def _forget() -> None:
    """What imported modules have drawn or looked up once, and a new process would for itself."""
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()


def _code(request: Request) -> CodeType:
    """The command's, with `sys.argv`, `sys.path` and `__main__` as it finds them."""
    code, arguments = request["code"], request["arguments"]
    sys.argv[:] = arguments
    main = vars(sys.modules["__main__"])
    del main["runpy"], main["sys"]
    first = "" if code is not None else os.path.dirname(os.path.realpath(arguments[0]))
    if "-P" not in request["flags"]:
        sys.path.insert(0, first)
    if code is not None:
        return compile(code, "<string>", "exec")
    main["__file__"] = arguments[0]
    return compile(Path(arguments[0]).read_bytes(), arguments[0], "exec")
