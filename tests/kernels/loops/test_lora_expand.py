from __future__ import annotations

import pytest
import torch

from kernels.lora_expand import lora_expand_reference
from tests.kernels.lora_case import LoraCase, token_slots
from tests.kernels.tolerances import assert_close


def small_case(out_features):
    case = LoraCase(8, out_features, 20, torch.bfloat16)
    case.add(1, *(16, 0, 20)[: len(out_features)])
    case.add(3, *(5, 17, 1)[: len(out_features)])
    return case


def random_inputs(case, tokens):
    slots = torch.tensor([0, 1, 3])[torch.randint(3, (tokens,))].tolist()
    shrunk = torch.randn(tokens, len(case.out_features), case.max_rank)
    return slots, shrunk, torch.randn(tokens, sum(case.out_features) + 7).bfloat16()


@pytest.mark.pairwise
@pytest.mark.parametrize("strewn", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 17, 300])
@pytest.mark.parametrize("out_features", [(123,), (17, 130), (1, 128, 200)])
def test_equals_the_formula_and_the_reference(loops, out_features, tokens, strewn):
    """On one thread and on several. Around each row lie NaN, and other slots have offsets beyond everything."""
    case = small_case(out_features)
    slots, shrunk, y = random_inputs(case, tokens)
    given, tables = token_slots(slots), case.tables(6, strewn=strewn)
    got, of_reference = y.clone(), y.clone()
    loops.lora_expand(shrunk, given, tables, got[:, :-7])
    lora_expand_reference(shrunk, given, tables, of_reference[:, :-7])
    assert_close(got[:, :-7], case.expanded(shrunk, slots, y[:, :-7]))
    torch.testing.assert_close(got, of_reference, atol=6e-2, rtol=2e-2)
    assert torch.equal(got[:, -7:], y[:, -7:])


def test_what_has_no_adapter_keeps_its_bits(loops):
    case = small_case((17, 30, 9))
    slots, y = [0, 1, 3] * 4, torch.randn(12, 56).bfloat16()
    y[0, :3] = y[1, 17:20] = torch.tensor([-0.0, float("nan"), float("inf")])
    before = y.clone()
    loops.lora_expand(torch.randn(12, 3, 20), token_slots(slots), case.tables(4), y)
    changed = y.view(torch.int16) != before.view(torch.int16)
    assert not changed[::3].any() and not changed[1::3, 17:47].any()
    assert changed[1::3, :17].any() and changed[2::3].any()


def test_a_token_does_not_depend_on_the_others(loops):
    case = small_case((40, 33))
    slots, shrunk, y = random_inputs(case, 9)
    y, tables = y[:, :73].contiguous(), case.tables(4)
    shrunk[1], together = float("nan"), y.clone()
    loops.lora_expand(shrunk, token_slots(slots), tables, together)
    for token in (0, 4, 8):
        alone = y[token : token + 1].clone()
        loops.lora_expand(shrunk[token : token + 1], token_slots(slots[token : token + 1]), tables, alone)
        assert torch.equal(alone[0], together[token])
