"""torch's loaders end at once."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def torch_waits_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked worker of torch's that has inherited another iterator, in a traceback, does not end by itself: it is
    waited for so many seconds (5), and then terminated."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)
