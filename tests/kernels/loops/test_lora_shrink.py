from __future__ import annotations

import pytest
import torch

from kernels.lora_shrink import lora_shrink_reference
from tests.kernels.lora_case import LoraCase, token_slots
from tests.kernels.tolerances import assert_close


def small_case(size):
    case = LoraCase(size, (17, 8, 3), 20, torch.bfloat16)
    case.add(1, 16, 0, 20)
    case.add(3, 5, 17, 1)
    return case


@pytest.mark.pairwise
@pytest.mark.parametrize("strewn", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 17, 300])
@pytest.mark.parametrize("size", [1, 123, 576])
def test_equals_the_formula_and_the_reference(loops, size, tokens, strewn):
    """On one thread and on several. Around each row lie NaN, and other slots have offsets beyond everything."""
    case, slots = small_case(size), torch.tensor([0, 1, 3])[torch.randint(3, (tokens,))].tolist()
    x, given, tables = torch.randn(tokens, 3, size).bfloat16()[:, 1], token_slots(slots), case.tables(6, strewn=strewn)
    got, want = loops.lora_shrink(x, given, tables), case.shrunk(x, slots)
    assert_close(got, want)
    assert not got[want == 0].any()
    assert_close(got.bfloat16(), lora_shrink_reference(x, given, tables))


def test_a_token_does_not_depend_on_the_others(loops):
    case, slots = small_case(100), [1, 3, 0, 1, 3, 3, 1, 0, 1]
    x, tables = torch.randn(9, 100).bfloat16(), case.tables(4)
    x[1] = float("nan")
    together = loops.lora_shrink(x, token_slots(slots), tables)
    for token in (0, 4, 8):
        alone = loops.lora_shrink(x[token : token + 1], token_slots(slots[token : token + 1]), tables)
        assert torch.equal(alone[0], together[token])
