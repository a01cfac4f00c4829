"""The Trainer trains, evaluates, predicts and goes on from a checkpoint, with aloader's workers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.ecosystem.launcher import launch, needs, once_each

pytestmark = [pytest.mark.ecosystem, pytest.mark.slow, needs("transformers"), needs("accelerate")]

SAMPLES, EVALUATED = 48, 21


@pytest.fixture(scope="module", params=[1, 2], ids=["1 process", "2 processes"])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return launch("with_trainer", request.param, tmp_path_factory.mktemp("trainer"))


DATASETS = pytest.mark.parametrize("dataset", ["map", "async", "light"])


@DATASETS
def test_every_sample_trains_once_an_epoch(ranks, dataset):
    shares = [rank[dataset]["trained"]["indices"] for rank in ranks]
    half = SAMPLES // len(ranks)
    assert once_each([share[:half] for share in shares], SAMPLES)
    assert once_each([share[half:] for share in shares], SAMPLES)
    assert shares[0][:half] != shares[0][half:]  # another order in each epoch
    for rank in ranks:
        done, again, planned = rank[dataset]["steps"]
        assert done == again == planned


@DATASETS
def test_every_sample_is_evaluated_and_predicted(ranks, dataset):
    """Twice evaluated: once an epoch, by one loader if its workers persist. The last batch is filled up."""
    for rank in ranks:
        assert rank[dataset]["predictions"] == EVALUATED
        assert rank[dataset]["kept"] in (True, None)
    evaluated = [index for rank in ranks for index in rank[dataset]["evaluated"]["indices"]]
    assert set(evaluated) == set(range(EVALUATED))
    assert len(evaluated) == 2 * (EVALUATED if len(ranks) == 1 else 24)


@pytest.mark.parametrize("dataset", ["map", "async"])
@pytest.mark.parametrize("what", ["trained", "evaluated", "rest"])
def test_own_workers_deliver(ranks, dataset, what):
    for rank in ranks:
        assert rank[dataset][what]["by_own_workers"]
        assert rank[dataset][what]["workers"] == 2


def test_an_async_dataset_needs_no_workers(ranks):
    assert all(rank["light"]["trained"]["workers"] == 0 for rank in ranks)


@DATASETS
def test_going_on_in_the_middle_of_an_epoch_gives_the_rest_of_it(ranks, dataset):
    """One step of two batches into the second epoch: the samples of that step are not seen again."""
    for rank in ranks:
        whole, rest = rank[dataset]["trained"]["indices"], rank[dataset]["rest"]["indices"]
        assert rest == whole[SAMPLES // len(ranks) + 8 :]
        assert rank[dataset]["weights"][0] == rank[dataset]["weights"][1]


@DATASETS
def test_the_loader_has_the_trainers_arguments_and_our_own(ranks, dataset):
    for rank in ranks:
        assert rank[dataset]["kind"]
        assert rank[dataset]["arguments"] == [0 if dataset == "light" else 2, "1GiB", None]
