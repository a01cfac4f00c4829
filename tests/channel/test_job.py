"""A job comes back from its memfd as it was, and one that says the same is known by its bytes."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import collate

from aloader.channel.job import Carried, Job, load, read_index
from tests.loader.samples import Numbers, Whole, as_list

pytestmark = pytest.mark.usefixtures("nothing_left")

CONTEXT = cloudpickle.dumps({"path": ["a", "b"]})


@contextmanager
def written(dataset: Any, collate_fn: Any = as_list, init: Any = None) -> Iterator[Carried]:
    carried = Carried(Job(dataset, collate_fn, init, {}), CONTEXT)
    carried.write()
    yield carried
    carried.close()


def test_it_comes_back_as_it_was():
    data = {
        "large": np.arange(100_000.0),
        "empty": np.zeros((0, 3)),
        "tensor": torch.arange(50_000),
        "empty tensor": torch.empty(0),
        "small": np.array([1, 2]),
        "text": "x" * 10,
    }
    with written(data, default_collate, print) as carried:
        job = load(carried.fd, carried.size)
        assert job.collate_fn is default_collate
        assert job.worker_init_fn is print
        for key, value in data.items():
            assert type(job.dataset[key]) is type(value)
            assert (job.dataset[key] == value) is True if isinstance(value, str) else (job.dataset[key] == value).all()
        assert job.dataset["empty"].shape == (0, 3)


def test_what_one_process_writes_the_others_do_not_see():
    with written(Whole(20_000)) as carried:
        first, second = (load(carried.fd, carried.size) for _ in range(2))
        first.dataset.array[:] = 7
        assert (second.dataset.array == 0).all()
        assert (load(carried.fd, carried.size).dataset.array == 0).all()


def test_the_memory_lives_as_long_as_anything_of_the_job():
    with written(Whole(20_000)) as carried:
        array = load(carried.fd, carried.size).dataset.array
    assert array.sum() == 0
    array[5] = 1
    assert array.sum() == 1


def test_the_context_can_be_read_without_the_job():
    with written(Numbers()) as carried:
        assert read_index(carried.fd).context == CONTEXT


def test_every_part_lies_on_its_boundary():
    with written([np.arange(1001), np.arange(5003), np.zeros(0)]) as carried:
        assert all(at % 64 == 0 for at, _ in read_index(carried.fd).places)


def changed(n: int = 20_000, at: int = 0, to: float = 1.0) -> Whole:
    dataset = Whole(n)
    dataset.array[at] = to
    return dataset


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Numbers(5), Numbers(5), True),
        (Numbers(5), Numbers(6), False),
        (Whole(20_000), Whole(20_000), True),
        (Whole(20_000), Whole(20_001), False),
        (Whole(20_000), changed(at=0), False),
        (Whole(20_000), changed(at=19_999), False),  # the last byte counts
        (changed(to=0.0), changed(to=-0.0), False),  # bytes, not values
        ([np.zeros((0, 3))], [np.zeros((0, 3))], True),
        ([np.zeros((0, 3))], [np.zeros((0, 4))], False),
        ([], [], True),
    ],
)
def test_the_same_job_is_known_by_its_bytes(one, other, same):
    with written(one) as carried:
        assert Carried(Job(other, as_list, None, {}), b"").same_as(carried) is same


def test_a_job_that_was_written_and_forgotten_can_still_be_compared_with():
    with written(Whole(20_000)) as carried:
        carried.forget()
        assert Carried(Job(Whole(20_000), as_list, None, {}), CONTEXT).same_as(carried)
        assert not Carried(Job(changed(), as_list, None, {}), CONTEXT).same_as(carried)
        assert (load(carried.fd, carried.size).dataset.array == 0).all()


def test_closing_twice_closes_once():
    carried = Carried(Job(Numbers(), as_list, None, {}), b"")
    carried.close()  # never written
    carried.write()
    fd = carried.fd
    carried.close()
    carried.close()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_entries_of_the_user_in_torchs_table_are_carried_and_torchs_own_are_not(monkeypatch):
    def mine(batch: Any, *, collate_fn_map: Any = None) -> str:
        return "mine"

    monkeypatch.setitem(collate.default_collate_fn_map, Numbers, mine)
    monkeypatch.setitem(collate.default_collate_fn_map, float, mine)
    assert Job.of(Numbers(), as_list, None).collate_entries == {Numbers: mine, float: mine}
    monkeypatch.undo()
    assert Job.of(Numbers(), as_list, None).collate_entries == {}


def set_up() -> None:
    os.environ["ALOADER_TEST_ORDER"] = "set up"


def set_up_otherwise() -> None:
    raise LookupError("not today")


class Ordered(Numbers):
    """Notes what the environment says while it is unpickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, found=os.environ.get("ALOADER_TEST_ORDER"))


def test_worker_setup_runs_before_the_dataset_is_unpickled(monkeypatch):
    monkeypatch.setenv("ALOADER_TEST_ORDER", "not yet")
    carried = Carried(Job(Ordered(), as_list, None, {}, set_up), CONTEXT)
    carried.write()
    job = load(carried.fd, carried.size)
    assert job.dataset.found == "set up"
    assert job.worker_setup is None  # it has run
    carried.close()


def test_what_worker_setup_raises_says_so():
    carried = Carried(Job(Numbers(), as_list, None, {}, set_up_otherwise), CONTEXT)
    carried.write()
    with pytest.raises(LookupError, match="not today") as caught:
        load(carried.fd, carried.size)
    assert caught.value.__notes__[0].startswith("raised by worker_setup=<function set_up_otherwise")
    carried.close()


@pytest.mark.parametrize(
    ("setup", "context", "flags", "same"),
    [
        (set_up, CONTEXT, {"a": {"x": 1}}, True),
        (set_up, CONTEXT, {"a": {"x": 2}}, True),  # flags that have changed are sent to new workers
        (set_up, b"another", {"a": {"x": 1}}, False),  # applied later, it would undo what the function has done
        (set_up_otherwise, CONTEXT, {"a": {"x": 1}}, False),
        (None, CONTEXT, {"a": {"x": 1}}, False),
    ],
)
def test_a_job_with_worker_setup_is_the_same_in_the_same_context(setup, context, flags, same):
    carried = Carried(Job(Numbers(), as_list, None, {}, set_up), CONTEXT, {"a": {"x": 1}})
    carried.write()
    assert Carried(Job(Numbers(), as_list, None, {}, setup), context, flags).same_as(carried) is same
    carried.close()


def test_warnings_are_no_errors_while_modules_are_imported(tmp_path, monkeypatch):
    (tmp_path / "warns_once_imported.py").write_text(
        "import warnings\nwarnings.warn('old', DeprecationWarning)\nclass Data: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.warns(DeprecationWarning, match="old"):
        from warns_once_imported import Data  # type: ignore[import-not-found]
    with written(Data()) as carried:
        del sys.modules["warns_once_imported"]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("error")
            job = load(carried.fd, carried.size)
        assert [str(warning.message) for warning in caught] == ["old"]
        assert type(job.dataset).__name__ == "Data"
        del sys.modules["warns_once_imported"]
