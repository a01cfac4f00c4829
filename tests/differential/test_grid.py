"""Every pair of levels of any two arguments, with torch's loader and ours, by `for` and `async for`.

Our workers are forked here, as torch's are: `test_template` has the default start.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import data, orders
from .grids import Choice, pairwise
from .kit import Case, assert_alike

FACTORS: dict[str, tuple[Any, ...]] = {
    "way": ("for", "async for"),
    "workers": (0, 1, 2, 3),
    "batches": ((1, False), (3, False), (3, True), (7, False), (7, True), (None, False)),
    "order": tuple(orders.ORDERS),
    "generator": ("none", "loader", "both"),
    "persistent": (False, True),
    "prefetch": (None, 1, 3),
    "init": (None, "draws", "marks"),
    "dataset": tuple(data.DATASETS),
    "epochs": ((None,), (None, None), (None, None, None), (1, None), (3, 2, None)),
}


def allowed(choice: Choice) -> bool:
    """Leaves out what torch's checks refuse (`test_arguments` has it), and what is the same as another choice."""
    if not choice["workers"] and (choice["persistent"] or choice["prefetch"] or choice["init"]):
        return False
    if choice["persistent"] and choice["epochs"][0] is not None and choice["dataset"] == "drawing":
        return False  # the random state of kept workers after a break: `test_epochs` has it
    return choice["order"] not in orders.IN_BATCHES or choice["batches"] == (1, False)


def case_of(choice: Choice) -> Case:
    """The arguments that a choice stands for."""
    batch_size, drop_last = choice["batches"]

    def make() -> dict[str, Any]:
        generator = None if choice["generator"] == "none" else torch.Generator().manual_seed(3)
        given = generator if choice["generator"] == "both" else None
        arguments = orders.ORDERS[choice["order"]](data.DATASETS[choice["dataset"]](), given)
        arguments |= {"num_workers": choice["workers"], "generator": generator}
        if choice["order"] not in orders.IN_BATCHES:
            arguments |= {"batch_size": batch_size, "drop_last": drop_last}
        if choice["workers"]:
            init = choice["init"] and getattr(data, choice["init"])
            arguments |= {"persistent_workers": choice["persistent"], "prefetch_factor": choice["prefetch"]}
            arguments |= {"worker_init_fn": init}
        if choice["order"] == "lists" or choice["dataset"] == "concat":
            arguments["collate_fn"] = data.with_info
        return arguments

    return Case(make, choice["epochs"])


CHOICES = pairwise(FACTORS, allowed, most=len(data.DATASETS) * len(FACTORS["workers"]))


def named(choice: Choice) -> str:
    return "-".join(str(level).replace(" ", "") for level in choice.values())


@pytest.mark.parametrize("choice", CHOICES, ids=named)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_nobody_can_tell_the_loaders_apart(choice: Choice) -> None:
    case = case_of(choice)
    assert_alike(case, ways=(choice["way"],))


def test_the_choices_have_every_pair() -> None:
    for one, other in (("order", "generator"), ("dataset", "workers"), ("persistent", "epochs"), ("way", "batches")):
        seen = {(choice[one], choice[other]) for choice in CHOICES}
        missing = {(a, b) for a in FACTORS[one] for b in FACTORS[other]} - seen
        assert all(not allowed(DULL | {one: a, other: b}) for a, b in missing), missing


#: A choice that goes with everything.
DULL: Choice = {
    "workers": 1,
    "batches": (1, False),
    "order": "unsaid",
    "persistent": False,
    "prefetch": None,
    "init": None,
}
