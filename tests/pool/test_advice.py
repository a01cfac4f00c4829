"""What is warned of before workers start: heavy pickles, with what makes them so, and what stays behind."""

from __future__ import annotations

import logging
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from aloader import DataLoader, options
from aloader.channel.job import Carried, Job
from aloader.datasets import PackedList
from aloader.pool import advice
from tests.loader.samples import Numbers, as_list


class Holder(Numbers):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.__dict__.update(attributes)


def on_weight(dataset: Any, seconds: float) -> list[str]:
    job = Job(dataset, as_list, None, {})
    return list(advice.on_weight(job, Carried(job, b""), seconds))


@pytest.mark.slow
def test_a_list_that_takes_long_is_named_with_the_remedy():
    paths = [f"train/{k:060d}" for k in range(200_000)]
    dataset = Holder(inner=Holder(paths=paths, labels=np.zeros(10), few=[1, 2]), other={"a": 1})
    (text,) = on_weight(dataset, 1.5)
    assert text.startswith("pickling the dataset took 1.5 s, in which the program stood still, since it holds ")
    assert "most of all dataset.inner.paths, a list of 200,000." in text
    assert "aloader.datasets.PackedList" in text
    assert on_weight(dataset, 0.5) == []
    assert on_weight(Holder(paths=PackedList(paths)), 5.0) == []


def test_what_is_large_is_named_however_fast_it_was(monkeypatch):
    monkeypatch.setattr(options, "HEAVY_BYTES", (1000, 100_000))
    (text,) = on_weight(Holder(table={f"key {k}": k for k in range(20_000)}), 0.0)
    assert "dataset.table, a dict of 20,000." in text
    (text,) = on_weight(Holder(text="x" * 200_000), 0.0)
    assert "0 MB of Python objects. Each worker" in text
    assert on_weight(Holder(array=np.zeros(1_000_000)), 9.0) == []
    assert on_weight([0] * 200_000, 0.0)[0].count("dataset, a list of 200,000") == 1


def test_a_loader_warns_where_it_is_iterated(monkeypatch):
    monkeypatch.setattr(options, "HEAVY_BYTES", (1000, 100_000))
    with DataLoader(Holder(items=list(range(50_000))), num_workers=1, collate_fn=as_list) as loader:
        with pytest.warns(UserWarning, match=r"dataset\.items, a list of 50,000.*PackedList") as caught:
            assert next(iter(loader)) == [0]
    assert caught[0].filename == __file__


def test_what_stays_behind_is_named_once_with_the_remedy():
    logger, handler = logging.getLogger("aloader-test"), logging.Handler()
    logger.addHandler(handler)
    exec("def patch(): pass", vars(sys.modules["__main__"]))
    library: Any = ModuleType("some_library")
    sys.modules["some_library"] = library
    library.read = sys.modules["__main__"].patch  # type: ignore[attr-defined]
    try:
        loader = DataLoader(Numbers(2), num_workers=1)
        with loader, pytest.warns(UserWarning, match="workers do not take over") as caught:
            assert len(list(loader)) == len(list(loader)) == 2
        (warning,) = caught
        assert "the logging handler Handler of logger 'aloader-test'; some_library.read, which the script" in str(
            warning.message
        )
        assert "worker_setup=" in str(warning.message)
        assert warning.filename == __file__
        with DataLoader(Numbers(2), num_workers=1, worker_setup=print) as knowing:
            assert len(list(knowing)) == 2
    finally:
        logger.removeHandler(handler)
        del sys.modules["some_library"], sys.modules["__main__"].patch  # type: ignore[attr-defined]
