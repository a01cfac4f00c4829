"""What other tools know a loader by: names of threads, labels in a profile, what DataPipes are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from aloader import DataLoader

from .samples import Numbers

pytestmark = pytest.mark.usefixtures("nothing_left")


class Named(Numbers):
    """Sample i is the name that the system knows this thread by."""

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        return Path("/proc/thread-self/comm").read_text().strip()


@pytest.mark.parametrize("context", [None, "fork"])
def test_a_workers_thread_has_torchs_name(context):
    with DataLoader(Named(1), batch_size=None, num_workers=1, multiprocessing_context=context) as loader:
        assert list(loader) == ["pt_data_worker"]
