from __future__ import annotations

import torch

from service.runner.eager_step import with_grammar_masks
from service.sampling.sampler import SamplingExtras, TokenBitmask
from tests.structured.masks import FixedMasks

CPU = torch.device("cpu")


def test_without_masks_nothing_is_asked_for():
    assert with_grammar_masks(None, None, CPU) is None
    extras = SamplingExtras(num_top=2)
    assert with_grammar_masks(extras, None, CPU) is extras


def test_a_grammars_mask_joins_what_the_parameters_ask_for():
    other = TokenBitmask(torch.full((1, 2), -1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32))
    extras = with_grammar_masks(SamplingExtras(bitmasks=(other,), num_top=2), FixedMasks([-1, 0], [[33]], 40), CPU)
    assert extras is not None
    assert extras.num_top == 2
    assert extras.bitmasks[0] is other
    assert extras.bitmasks[1].bitmask.tolist() == [[0, 2]]
    assert extras.bitmasks[1].mask_rows.tolist() == [-1, 0]
    assert extras.bitmasks[1].mask_rows.dtype == torch.int32
