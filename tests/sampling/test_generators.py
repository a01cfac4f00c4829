"""The state of a torch generator survives being written down, in little text."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from aloader.sampling.generators import noted, restored

USES: dict[str, Callable[[torch.Generator], object]] = {
    "not at all": lambda generator: None,
    "for one number": lambda generator: torch.rand(1, generator=generator),
    "for one normal number, keeping another": lambda generator: torch.randn(1, generator=generator),
    "for normal doubles": lambda generator: torch.randn(3, dtype=torch.float64, generator=generator),
    "for more words than it has": lambda generator: torch.rand(1000, generator=generator),
    "for just its words": lambda generator: torch.rand(624, generator=generator),
    "for a permutation": lambda generator: torch.randperm(5000, generator=generator),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("seed", [0, 1, -3, 2**63 - 1, 2**64 - 1])
def test_a_generator_goes_on_where_it_was(seed, use):
    generator = torch.Generator().manual_seed(seed)
    use(generator)
    before = generator.get_state()
    note = json.loads(json.dumps(noted(generator)))
    assert torch.equal(generator.get_state(), before), "nothing is drawn"
    other = torch.Generator()
    assert restored(note, other) is other
    for again in (other, restored(note)):
        assert torch.equal(again.get_state(), before)
        assert again.initial_seed() == generator.initial_seed()
        assert torch.equal(torch.randn(700, generator=again), torch.randn(700, generator=generator))
        generator.set_state(before)


def test_a_fresh_generator_is_its_seed_and_a_used_one_half_of_what_torch_keeps():
    generator = torch.Generator().manual_seed(9)
    assert noted(generator) == {"initial_seed": 9}
    torch.rand(1, generator=generator)
    assert len(json.dumps(noted(generator))) < 3500 < generator.get_state().numel()


def test_the_global_generator_is_noted_and_left_alone():
    torch.manual_seed(4)
    torch.rand(3)
    before = torch.get_rng_state()
    private = restored(noted(None))
    assert torch.equal(private.get_state(), before)
    torch.rand(3, generator=private)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_that_is_laid_out_in_another_way_is_kept_whole():
    """As another version of torch may have it: here with something in the halves of words that are empty now."""

    class Strange:
        device = torch.device("cpu")

        def __init__(self, state: torch.Tensor) -> None:
            self.state = state

        def get_state(self) -> torch.Tensor:
            return self.state

        def set_state(self, state: torch.Tensor) -> None:
            self.state = state

        def initial_seed(self) -> int:
            return 1

    usual = torch.Generator().manual_seed(2).get_state()
    full = usual.clone()
    full[24 + 7] = 1
    for state in (full, usual[:-8], torch.cat([usual, usual])):
        note = json.loads(json.dumps(noted(Strange(state))))  # type: ignore[arg-type]
        assert torch.equal(restored(note, Strange(torch.empty(0))).get_state(), state)  # type: ignore[arg-type]
