"""Lightning's Trainer and Fabric iterate aloader's loader, made again with their sampler for several processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ecosystem.launcher import launch, needs, once_each

pytestmark = [pytest.mark.ecosystem, pytest.mark.slow, needs("lightning")]

SAMPLES, EVALUATED = 48, 24


@pytest.fixture(scope="module", params=[1, 2], ids=["1 process", "2 processes"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch("with_lightning", request.param, tmp_path_factory.mktemp("lightning"))


WAYS = pytest.mark.parametrize("way", ["map", "async", "hook", "light", "fabric"])


@WAYS
def test_every_sample_trains_once_an_epoch(ranks, way):
    shares = [rank[way]["trained"]["indices"] for rank in ranks]
    half = SAMPLES // len(ranks)
    assert once_each([share[:half] for share in shares], SAMPLES)
    if way != "fabric":  # one epoch
        assert once_each([share[half:] for share in shares], SAMPLES)
        assert shares[0][:half] != shares[0][half:]
        assert all(rank[way]["steps"] == 2 * half // 4 for rank in ranks)


@pytest.mark.parametrize("way", ["map", "async"])
def test_every_sample_is_validated_and_predicted(ranks, way):
    shares = [rank[way]["evaluated"]["indices"] for rank in ranks]
    half = EVALUATED // len(ranks)
    assert once_each([share[:half] for share in shares], EVALUATED)
    assert once_each([share[half:] for share in shares], EVALUATED)
    assert once_each([rank[way]["predicted"]["indices"] for rank in ranks], EVALUATED)


@pytest.mark.parametrize(
    ("way", "what"),
    [(way, what) for way in ("map", "async") for what in ("trained", "evaluated", "predicted")]
    + [("hook", "trained"), ("fabric", "trained")],
)
def test_own_workers_deliver(ranks, way, what):
    for rank in ranks:
        assert rank[way][what]["by_own_workers"]
        assert rank[way][what]["workers"] >= 2


@WAYS
def test_the_loader_that_is_used_has_all_arguments_and_the_right_sampler(ranks, way):
    """`prefetch_factor` stays what nobody asked for, though every loader shows a number."""
    for rank in ranks:
        used = rank[way]["used"]
        assert used["kind"]
        assert used["sampler"] == ("DistributedSampler" if len(ranks) > 1 else "RandomSampler")
        assert used["arguments"] == [0 if way == "light" else 2, "1GiB", None if way == "map" else 8, None]
