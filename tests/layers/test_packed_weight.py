from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from service.layers import packed_weight
from service.layers.packed_weight import can_pack, choose_one_row_way, pack_weight

DTYPES = [torch.float32, torch.bfloat16]


def packed_and_plain(rows, columns, dtype, keeps_plain):
    weight = torch.randn(rows, columns).to(dtype)
    packed = pack_weight(weight, keeps_plain)
    if packed is None:
        pytest.skip("this torch or this CPU has no packed linears")
    return packed, weight


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("keeps_plain", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 17, 123])
def test_equals_the_exact_product(rows, keeps_plain, has_bias, dtype):
    """Within the roundings of the output's dtype: both ways sum in fp32."""
    packed, weight = packed_and_plain(96, 200, dtype, keeps_plain)
    x, bias = torch.randn(rows, 200).to(dtype), torch.randn(96).to(dtype) if has_bias else None
    exact = F.linear(x.double(), weight.double(), bias.double() if bias is not None else None)
    tolerance = 1e-4 if dtype is torch.float32 else 6e-2
    with torch.inference_mode():
        torch.testing.assert_close(packed(x, bias).double(), exact, atol=tolerance, rtol=tolerance / 4)


def test_onednn_is_on_again_after_a_single_row():
    packed, _ = packed_and_plain(8, 8, torch.bfloat16, keeps_plain=True)
    with pytest.raises(RuntimeError):
        packed(torch.zeros(1, 9, dtype=torch.bfloat16), None)
    assert torch._C._get_mkldnn_enabled()


@pytest.mark.parametrize("wins", [False, True])
def test_the_plain_weight_stays_only_if_it_wins(wins, monkeypatch):
    packed, _ = packed_and_plain(8, 8, torch.bfloat16, keeps_plain=True)
    monkeypatch.setattr(packed_weight, "_one_row_is_faster", lambda sample: wins)
    assert choose_one_row_way([packed]) is wins
    assert (packed._plain is not None) is wins


def test_nothing_to_choose_between():
    assert choose_one_row_way([]) is False
    packed, _ = packed_and_plain(8, 8, torch.bfloat16, keeps_plain=False)
    assert choose_one_row_way([packed]) is False


def test_a_real_choice_is_made():
    weights = [packed_and_plain(256, 128, torch.bfloat16, keeps_plain=True)[0] for _ in range(3)]
    assert choose_one_row_way(weights) in (False, True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_are_not_packed(dtype):
    assert not can_pack(dtype)
    assert pack_weight(torch.zeros(4, 4, dtype=dtype), keeps_plain=True) is None
