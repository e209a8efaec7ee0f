from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from service.layers import packed_weight
from service.layers.packed_weight import can_pack, choose_forms, pack_weight

DTYPES = [torch.float32, torch.bfloat16]


def packed_and_its_weight(rows, columns, dtype, in_two_forms):
    weight = torch.randn(rows, columns).to(dtype)
    packed = pack_weight(weight, in_two_forms)
    if packed is None:
        pytest.skip("this torch or this CPU has no packed linears")
    return packed, weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("in_two_forms", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 17, 123])
@pytest.mark.parametrize("columns", [200, 208])
def test_equals_the_exact_product(columns, rows, in_two_forms, has_bias, dtype):
    """Within the roundings of the output's dtype: both ways sum in fp32."""
    packed, weight = packed_and_its_weight(96, columns, dtype, in_two_forms)
    x, bias = torch.randn(rows, columns).to(dtype), torch.randn(96).to(dtype) if has_bias else None
    exact = F.linear(x.double(), weight.double(), bias.double() if bias is not None else None)
    tolerance = 1e-4 if dtype is torch.float32 else 6e-2
    with torch.inference_mode():
        torch.testing.assert_close(packed(x, bias).double(), exact, atol=tolerance, rtol=tolerance / 4)


@pytest.mark.parametrize(("few_win", "many_win"), [(False, False), (True, False), (True, True)])
def test_the_forms_that_win_stay(few_win, many_win, monkeypatch):
    packed, weight = packed_and_its_weight(16, 16, torch.bfloat16, in_two_forms=True)
    if packed._panels is None:
        pytest.skip("this machine runs no compiled loops")
    monkeypatch.setattr(packed_weight, "_loops_win", lambda sample, rows, cost: few_win if rows[0] == 1 else many_win)
    assert choose_forms([packed]) is few_win
    assert (packed._panels is not None) is few_win
    assert (packed._packed is None) is many_win
    for num_rows in (0, 1, 40):
        x = torch.randn(num_rows, 16).bfloat16()
        with torch.inference_mode():
            torch.testing.assert_close(packed(x, None), F.linear(x, weight), atol=6e-2, rtol=2e-2)


def test_nothing_to_choose_between():
    assert choose_forms([]) is False
    packed, _ = packed_and_its_weight(8, 8, torch.bfloat16, in_two_forms=False)
    assert choose_forms([packed]) is False


def test_a_real_choice_is_made():
    weights = [packed_and_its_weight(256, 128, torch.bfloat16, in_two_forms=True)[0] for _ in range(3)]
    before = torch.get_num_threads()
    assert choose_forms(weights) in (False, True)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_are_not_packed(dtype):
    assert not can_pack(dtype)
    assert pack_weight(torch.zeros(4, 4, dtype=dtype), in_two_forms=True) is None
