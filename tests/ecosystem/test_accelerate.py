"""A loader prepared for accelerate does what accelerate's own does, with aloader's workers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ecosystem.launcher import launch, needs, once_each

pytestmark = [pytest.mark.ecosystem, pytest.mark.slow, needs("accelerate")]

WAYS = [*"even remainder few drop_last shuffle seedable split uneven dispatched".split(), "batch sampler"]


@pytest.fixture(scope="module", params=[1, 2], ids=["1 process", "2 processes"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch("with_accelerate", request.param, tmp_path_factory.mktemp("accelerate"))


@pytest.mark.parametrize("way", WAYS)
def test_batches_and_state_are_those_of_accelerates_own_loader(ranks, way):
    """The same samples in the same batches, the same figures, and the state of gradient accumulation in each of them,
    over two epochs."""
    for rank in ranks:
        assert rank["ours"][way] == rank["theirs"][way]
    assert len(ranks[0]["ours"][way]) >= 5  # some batches, and the four figures


@pytest.mark.parametrize("way", ["remainder", "seedable", "split"])
def test_async_for_gives_the_same(ranks, way):
    for rank in ranks:
        assert rank[f"async for, {way}"] == rank["theirs"][way]


@pytest.mark.parametrize("streams", ["streams", "async streams", "async streams of a worker"])
def test_streams_are_dealt_out_as_accelerate_deals_them_out(ranks, streams):
    for rank in ranks:
        assert rank[streams] == rank["their streams"]
    indices = [i for rank in ranks for batch in rank[streams]["shared stream"][:-4] for i in batch[0]]
    assert set(indices) == set(range(37))


def test_batches_of_an_async_dataset_are_sent_to_the_other_processes(ranks):
    for rank in ranks:
        assert rank["dispatched, async"] == rank["theirs"]["dispatched"]


def test_skipped_batches_are_those_that_accelerate_skips(ranks):
    for rank in ranks:
        assert rank["our rest"] == rank["their rest"]


@pytest.mark.parametrize("dataset", ["map", "async"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["for", "async for"])
def test_training_is_fed_by_own_workers(ranks, dataset, asynchronous):
    """37 samples in batches of 4: the last one is filled up with samples of the first for training, not for metrics."""
    for rank in ranks:
        trained = rank[f"trained, {dataset}, {asynchronous}"]
        assert trained["by_own_workers"]
        assert trained["workers"] == 2
        assert trained["let through"]
        assert sorted(trained["gathered"]) == list(range(37))
        assert trained["steps"] == (10 if len(ranks) == 1 else 5)
        last = trained["steps"] - 1
        assert trained["synchronized"] == [i % 3 == 2 or i == last for i in range(trained["steps"])]


def test_cancelling_loses_no_batch(ranks):
    assert once_each([rank["cancelled"] for rank in ranks], 48)


def test_a_prepared_loader_can_be_pickled(ranks):
    assert once_each([[i for batch in rank["pickled"] for i in batch] for rank in ranks], 48)


def test_an_async_dataset_in_accelerates_own_loader_says_what_to_do(ranks):
    for rank in ranks:
        assert "AsyncStamped is async; torch's own loader cannot await it: iterate aloader.DataLoader." in rank["stray"]
        assert "use aloader.integrations.accelerate.prepare(accelerator, loader)" in rank["stray"]
