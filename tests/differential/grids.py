"""Chooses cases out of a grid that is too large to run: every pair of levels of any two factors at least once."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Choice = dict[str, Any]


def pairwise(
    factors: Mapping[str, Sequence[Any]], allowed: Callable[[Choice], bool], *, most: int, seed: int = 1
) -> list[Choice]:
    """A small list of choices that has every allowed pair of levels, of factors that have at most `most` pairs.

    Greedy: of a few random candidates that cover a pair still missing, the one that covers most of them.
    """
    rng = random.Random(seed)
    missing = {
        ((one, a), (other, b))
        for one, other in itertools.combinations(factors, 2)
        if len(factors[one]) * len(factors[other]) <= most
        for a in factors[one]
        for b in factors[other]
    }
    chosen: list[Choice] = []
    while missing:
        target = min(missing, key=repr)  # not any one: hashes of strings differ from run to run
        filled = (_filled(dict(target), factors, rng) for _ in range(1000))
        candidates = list(itertools.islice(filter(allowed, filled), 20))
        if not candidates:
            missing.discard(target)  # no allowed choice has it
            continue
        best = max(candidates, key=lambda choice: len(_pairs(choice) & missing))
        missing -= _pairs(best)
        chosen.append(best)
    return chosen


def _filled(fixed: Choice, factors: Mapping[str, Sequence[Any]], rng: random.Random) -> Choice:
    return {name: fixed.get(name, rng.choice(list(levels))) for name, levels in factors.items()}


def _pairs(choice: Choice) -> set[tuple[Any, Any]]:
    return set(itertools.combinations(choice.items(), 2))
