"""Logging in a worker as in its parent: console and file handlers are made again, others named; no line comes twice."""

from __future__ import annotations

import io
import json
import logging
import logging.handlers
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from aloader.channel import logs

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.usefixtures("nothing_left")

#: Applies what it is given, imports `library` if it is to, and logs.
APPLY = f"""
import sys; sys.path[:0] = [{str(ROOT)!r}, sys.argv[2]]
import json, logging, cloudpickle
from aloader.channel import logs
found = cloudpickle.loads(open(sys.argv[1], "rb").read())
logs.apply(found)
if sys.argv[3] == "import":
    import library
logs.apply_after_loading(found)
for name in json.loads(sys.argv[4]):
    logging.getLogger(name or None).warning("from %s", name)
    logging.getLogger(name or None).info("too little")
logging.shutdown()
"""

LIBRARY = """
import logging
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("library: %(message)s"))
logging.getLogger("library").addHandler(handler)
logging.getLogger("library").propagate = False
"""


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """A logger of the test's own, as the root logger of a program would be: pytest has handlers on that one."""
    logger = logging.getLogger("aloader-test")
    logger.propagate = False
    yield logger
    for handler in logger.handlers:
        handler.close()
    logger.handlers.clear()
    logger.filters.clear()
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def applied(tmp_path: Path, names: list[str], imports: str = "") -> subprocess.CompletedProcess[str]:
    """What a new process logs that has taken over this one's logging."""
    file = tmp_path / "logging"
    file.write_bytes(cloudpickle.dumps(logs.capture()))
    command = [sys.executable, "-c", APPLY, str(file), str(tmp_path), imports, json.dumps(names)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done


class Only(logging.Filter):
    """Lets through what has the word in it, and counts nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "test" in record.getMessage()


Only.__module__ = "__main__"  # carried by value, as a class of the script


@pytest.mark.slow
def test_consoles_and_files_are_made_again(logger, tmp_path):
    console, out = logging.StreamHandler(), logging.StreamHandler(sys.stdout)
    console.setFormatter(logging.Formatter("%(levelname)s|%(message)s"))
    console.addFilter(Only())
    out.setLevel(logging.ERROR)
    file = logging.FileHandler(tmp_path / "log.txt", encoding="utf-8")
    file.setFormatter(logging.Formatter("ä %(message)s"))
    for handler in (console, out, file):
        logger.addHandler(handler)
    logger.warning("here test")
    done = applied(tmp_path, ["aloader-test"])
    assert done.stderr == "WARNING|from aloader-test\n"
    assert done.stdout == ""
    assert (tmp_path / "log.txt").read_text("utf-8") == "ä here test\nä from aloader-test\n"


@pytest.mark.slow
@pytest.mark.parametrize(("imports", "lines"), [("import", ["library: from library"]), ("", ["from library"])])
def test_a_librarys_handler_is_its_own_and_no_line_comes_twice(tmp_path, monkeypatch, imports, lines):
    (tmp_path / "library.py").write_text(LIBRARY)
    monkeypatch.syspath_prepend(tmp_path)
    import library  # type: ignore[import-not-found]

    try:
        done = applied(tmp_path, ["library"], imports)
        assert done.stderr.splitlines() == lines
    finally:
        logging.getLogger("library").removeHandler(library.handler)
        logging.getLogger("library").propagate = True
        del sys.modules["library"]


def test_applying_twice_gives_the_same(logger):
    kept = logging.handlers.MemoryHandler(10)
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.ERROR)
    found = {
        **logs.capture(),
        "levels": {"aloader-test": logging.DEBUG},
        "closed": ["aloader-test"],
        "outputs": {"aloader-test": logs._outputs(logger)},
        "of_modules": set(),
    }
    root = list(logging.root.handlers)
    logger.addHandler(kept)
    for _ in range(2):
        logs._set_outputs(found, {"aloader-test"})
        own = [handler for handler in logger.handlers if "LogCapture" not in type(handler).__name__]  # pytest's
        console, other = own
        assert other is kept
        assert type(console) is logging.StreamHandler
        assert console.stream is sys.stderr
    assert logging.root.handlers == root


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda path: logging.StreamHandler(), None),
        (lambda path: logging.FileHandler(path, "a"), None),
        (lambda path: logging.FileHandler(path, "w"), "FileHandler of logger 'aloader-test'"),
        (lambda path: logging.handlers.RotatingFileHandler(path, delay=True), "RotatingFileHandler of logger"),
        (lambda path: logging.handlers.SocketHandler("localhost", 9), "SocketHandler of logger"),
        (lambda path: logging.StreamHandler(path.open("w")), "StreamHandler of logger"),
        (lambda path: logging.StreamHandler(io.StringIO()), None),  # a fork's copy would be lost as well
        (lambda path: logging.FileHandler("/dev/null", "w"), None),
        (lambda path: logging.NullHandler(), None),
    ],
)
def test_what_cannot_be_made_again_is_named(logger, tmp_path, make, named):
    handler: Any = make(tmp_path / "log.txt")
    logger.addHandler(handler)
    try:
        found = logs.lost()
        assert found == [] if named is None else (len(found) == 1 and found[0].startswith(named))
    finally:
        stream = getattr(handler, "stream", None)
        handler.close()
        if stream is not None and stream is not sys.stderr:
            stream.close()


def test_a_formatter_that_cannot_be_pickled_makes_its_handler_one_that_is_named(logger):
    class Locked(logging.Formatter):
        def __reduce__(self) -> Any:
            raise TypeError("never")

    console = logging.StreamHandler()
    console.setFormatter(Locked())
    logger.addHandler(console)
    assert logs.lost() == ["StreamHandler of logger 'aloader-test'"]
