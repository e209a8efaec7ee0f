from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kernels.lora_tiles import FEW_TOKENS, MANY_TOKENS, known_alignment, lora_tiles
from tests.kernels.lora_case import LoraCase


def test_the_cut_depends_on_the_number_of_tokens():
    assert {lora_tiles(n) for n in (1, 64, 256)} == {FEW_TOKENS}
    assert {lora_tiles(n) for n in (257, 8192)} == {MANY_TOKENS}


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
