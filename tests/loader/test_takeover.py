"""What a script has set holds in its workers as it does under torch's fork; and `worker_setup`, for the rest."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from aloader import DataLoader

from .programs import Program
from .samples import AsyncNumbers, Numbers, as_list

pytestmark = pytest.mark.usefixtures("nothing_left")

SHELF = """
root, SIZE, mode, calls = None, 3, "slow", 0
def set_mode(name):
    global mode, calls
    mode = name
    calls += 1
"""

HEAD = """
import decimal, io, logging, os, sys
import torch
from PIL import Image, ImageFile
import aloader, shelf

whole = io.BytesIO()
Image.effect_noise((64, 64), 50).save(whole, "JPEG")

class Pictures:
    data = whole.getvalue()[:-400]  # truncated
    def __len__(self):
        return 2
    def __getitem__(self, i):
        logging.info("sample %d", i)
        logging.getLogger("quiet").warning("not to be seen")
        image = Image.open(io.BytesIO(self.data))
        image.load()
        flags = shelf.root, shelf.SIZE, os.environ.get("MARK"), str(torch.ones(1).dtype), str(decimal.Decimal(1) / 3)
        return [image.size, *flags]

def look(kind, **options):
    try:
        loader = kind(Pictures(), num_workers=1, batch_size=None, collate_fn=repr, **options)
        print(*loader, flush=True)
    except OSError as error:
        print(repr(error), flush=True)
    for handler in logging.root.handlers:
        handler.flush()

stock = torch.utils.data.DataLoader
"""

SET = """
ImageFile.LOAD_TRUNCATED_IMAGES = True
shelf.root, shelf.SIZE = "/data", 7
os.environ["MARK"] = "yes"
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", filename=sys.argv[0] + ".log")
logging.getLogger("quiet").setLevel(logging.ERROR)
torch.set_default_dtype(torch.float64)
decimal.getcontext().prec = 5
"""


def run(tmp_path, body, head=HEAD, flags=("-W", "error")):
    (tmp_path / "shelf.py").write_text(SHELF)
    with Program(tmp_path, head + body, flags=flags) as running:
        ended = running.end()
        assert ended.code == 0, ended
        return ended


@pytest.mark.slow
def test_what_a_script_sets_holds_as_under_torchs_fork(tmp_path):
    body = 'look(stock, multiprocessing_context="fork"); look(aloader.DataLoader)'
    without = run(tmp_path, body).out.splitlines()
    assert "truncated" in without[0]  # the flags make the difference
    assert "truncated" in without[1]
    ended = run(tmp_path, SET + body)
    stock, ours = ended.out.splitlines()
    sample = "[(64, 64), '/data', 7, 'yes', 'torch.float64', '0.33333']"
    assert stock == ours == f"{sample} {sample}"
    (log,) = tmp_path.glob("*.log")
    assert log.read_text().splitlines() == ["INFO sample 0", "INFO sample 1"] * 2
    assert ended.err == ""


@pytest.mark.slow
def test_flags_that_change_between_epochs_change_in_new_workers_and_the_dataset_is_not_loaded_again(tmp_path):
    body = """
class Counted:
    def __len__(self): return 1
    def __setstate__(self, state): print("loaded", flush=True)
    def __reduce__(self): return Counted, (), {}
    def __getitem__(self, i): return shelf.root, shelf.SIZE, ImageFile.LOAD_TRUNCATED_IMAGES
loader = aloader.DataLoader(Counted(), num_workers=1, batch_size=None, collate_fn=repr)
print(*loader)
shelf.root, shelf.SIZE, ImageFile.LOAD_TRUNCATED_IMAGES = "there", 8, True
print(*loader)
shelf.root = None
print(*loader)
"""
    lines = run(tmp_path, body).out.splitlines()
    assert lines == ["loaded", "(None, 3, False)", "('there', 8, True)", "(None, 8, True)"]


@pytest.mark.slow
def test_logging_to_the_console_is_seen_from_workers_once(tmp_path):
    body = """
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
ImageFile.LOAD_TRUNCATED_IMAGES = True
look(aloader.DataLoader)
look(aloader.DataLoader, multiprocessing_context="fork")
"""
    lines = run(tmp_path, body).err.splitlines()
    shown = ["INFO sample 0", "WARNING not to be seen", "INFO sample 1", "WARNING not to be seen"]
    assert lines == shown * 2


@pytest.mark.slow
def test_what_is_not_taken_over_is_named_with_the_remedy_and_the_remedy_works(tmp_path):
    body = """
import logging.handlers
def patched(*args):
    return real(*args)
real, Image.open = Image.open, patched
ImageFile.LOAD_TRUNCATED_IMAGES = True
shelf.set_mode("fast")
logging.getLogger().addHandler(logging.handlers.RotatingFileHandler(sys.argv[0] + ".log"))
class Modes:
    def __len__(self): return 1
    def __getitem__(self, i): return shelf.mode, Image.open.__name__, len(logging.getLogger().handlers)
def setup():
    shelf.set_mode("fast")
    Image.open = patched
    logging.getLogger().addHandler(logging.NullHandler())
options = dict(num_workers=1, batch_size=None, collate_fn=repr)
print(*aloader.DataLoader(Modes(), **options))
sys.stderr.flush()
print("--", file=sys.stderr)
print(*aloader.DataLoader(Modes(), worker_setup=setup, **options))
"""
    ended = run(tmp_path, body, flags=())
    assert ended.out.splitlines() == ["('slow', 'open', 0)", "('fast', 'patched', 1)"]
    before, after = ended.err.split("--\n")
    assert after == ""
    warned = [line for line in before.splitlines() if "UserWarning" in line]
    assert len(warned) == 2, before
    assert "logging handler RotatingFileHandler of the root logger; PIL.Image.open, which the script has" in warned[0]
    assert "workers do not take over shelf.mode: set in this process by functions of those modules" in warned[1]
    assert all("worker_setup=" in line for line in warned)


# -- worker_setup ------------------------------------------------------------------------------------------------------


class Here(Numbers):
    """Sample i is what the environment had when the dataset was loaded and has now, and the process."""

    found: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"n": self.n}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, found=os.environ.get("ALOADER_SET_UP"))

    def __getitem__(self, index: int) -> Any:
        return self.found, os.environ.get("ALOADER_SET_UP"), os.getpid()


def set_up() -> None:
    os.environ["ALOADER_SET_UP"] = f"by {os.getpid()}"


def refuse() -> None:
    raise LookupError("no such plugin")


def test_it_runs_once_for_all_workers_before_the_dataset_is_loaded():
    with DataLoader(Here(8), num_workers=2, batch_size=2, collate_fn=as_list, worker_setup=set_up) as loader:
        samples = [sample for batch in loader for sample in batch]
        again = [sample for batch in loader for sample in batch]
    found, now, workers = map(set, zip(*samples, strict=True))
    assert len(workers) == 2
    assert len(found) == 1
    assert found == now
    assert found & {f"by {worker}" for worker in workers} == set()
    assert {sample[0] for sample in again} == found, "the dataset was loaded again, and nothing had changed"
    assert "ALOADER_SET_UP" not in os.environ


def test_it_runs_again_where_the_parent_has_changed(monkeypatch):
    """What it has done must not be undone by what the parent has set meanwhile."""
    with DataLoader(Here(1), num_workers=1, collate_fn=as_list, worker_setup=set_up) as loader:
        ((first, _, _),) = next(iter(loader))
        monkeypatch.setenv("ALOADER_MEANWHILE", "1")
        ((second, now, _),) = next(iter(loader))
    assert second == now != first


def test_with_a_context_it_runs_in_each_worker():
    options: dict[str, Any] = {"collate_fn": as_list, "worker_setup": set_up, "multiprocessing_context": "fork"}
    with DataLoader(Here(4), num_workers=2, batch_size=2, **options) as loader:
        samples = [sample for batch in loader for sample in batch]
    assert all(now == f"by {pid}" for _, now, pid in samples)
    assert len({pid for _, _, pid in samples}) == 2


@pytest.mark.slow
def test_with_a_spawning_context_too(tmp_path):
    body = """
def setup():
    shelf.root = os.getpid()
class Root:
    def __len__(self): return 1
    def __getitem__(self, i): return shelf.root == os.getpid()
if __name__ == "__main__":
    print(*aloader.DataLoader(Root(), 1, num_workers=1, multiprocessing_context="spawn", worker_setup=setup))
"""
    assert run(tmp_path, body, flags=()).out == "tensor([True])\n"


def test_without_workers_it_does_not_run():
    assert list(DataLoader(Here(1), collate_fn=as_list, worker_setup=refuse)) == [[(None, None, os.getpid())]]


@pytest.mark.parametrize("options", [{}, {"multiprocessing_context": "fork"}])
@pytest.mark.parametrize("dataset", [Numbers(4), AsyncNumbers(4)])
def test_what_it_raises_is_the_first_batchs_error_and_says_so(dataset, options):
    with DataLoader(dataset, num_workers=1, worker_setup=refuse, **options) as loader:
        with pytest.raises(LookupError, match="no such plugin") as caught:
            next(iter(loader))
    assert any("raised by worker_setup=<function refuse" in note for note in caught.value.__notes__)


def test_a_lambda_of_the_script_and_what_it_holds_are_carried():
    marks = {"ALOADER_SET_UP": "mark" * 3000}  # more than travels inside a pickle's stream
    setup = lambda: os.environ.update(marks)  # noqa: E731
    with DataLoader(Here(1), num_workers=1, collate_fn=as_list, worker_setup=setup) as loader:
        ((found, now, _),) = next(iter(loader))
    assert found == now == "mark" * 3000


def test_one_that_cannot_be_pickled_is_refused_by_name():
    frame = sys._getframe()
    with DataLoader(Numbers(1), num_workers=1, worker_setup=lambda: frame) as loader:
        with pytest.raises(TypeError, match=r"worker_setup, captured 'frame': frame cannot be pickled"):
            iter(loader)


def test_it_is_checked_and_kept_under_its_name():
    with pytest.raises(TypeError, match="worker_setup option should be a function without arguments, but got worker_s"):
        DataLoader(Numbers(1), worker_setup="setup")  # type: ignore[arg-type]
    assert DataLoader(Numbers(1)).worker_setup is None
    assert DataLoader(Numbers(1), worker_setup=set_up).worker_setup is set_up
