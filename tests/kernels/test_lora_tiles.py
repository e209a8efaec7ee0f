from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.lora_tiles import FEW_TOKENS, MANY_TOKENS, LoraTiles, known_alignment, lora_tiles
from tests.kernels.lora_case import LoraCase


@pytest.mark.parametrize(
    ("num_tokens", "num_adapters", "cut"),
    [
        (1, 64, (FEW_TOKENS, 1, 1)),
        (64, 64, (FEW_TOKENS, 4, 16)),
        (65, 2, (FEW_TOKENS, 2, 10)),
        (256, 64, (FEW_TOKENS, 4, 64)),
        (257, 64, (MANY_TOKENS, 4, 20)),
        (8192, 1, (MANY_TOKENS, 1, 128)),
        (3, 0, (FEW_TOKENS, 1, 1)),
    ],
)
def test_the_cut_depends_on_the_numbers_of_tokens_and_slots(num_tokens, num_adapters, cut):
    """A tile has no more sharers than it may have adapters."""
    tables = LoraCase(8, (4,), 2).tables(1 + num_adapters)
    assert lora_tiles(num_tokens, tables) == LoraTiles(*cut)


@pytest.mark.parametrize(
    ("dtype", "given", "known"),
    [
        (torch.bfloat16, 1, 1),
        (torch.bfloat16, 8, 8),
        (torch.bfloat16, 12, 4),
        (torch.bfloat16, 4096, 8),
        (torch.float32, 64, 4),
        (torch.float32, 6, 2),
    ],
)
def test_alignment_is_told_up_to_what_one_load_takes(dtype, given, known):
    case = LoraCase(8, (4,), 2, dtype)
    case.add(1, 2)
    assert known_alignment(replace(case.tables(2), alignment=given)) == known
