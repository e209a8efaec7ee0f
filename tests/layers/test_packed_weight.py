from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.cpu_loops import loops_for
from service.layers.packed_weight import WeightForm, can_pack, pack_weight

DTYPES = [torch.float32, torch.bfloat16]


def packed_and_its_weight(rows, columns, dtype, form):
    weight = torch.randn(rows, columns).to(dtype)
    packed = pack_weight(weight, form)
    if packed is None:
        pytest.skip("this torch or this CPU has no packed linears")
    return packed, weight


@pytest.mark.pairwise
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("form", [WeightForm.ONEDNN, WeightForm.LOOPS, WeightForm.BOTH])
@pytest.mark.parametrize("rows", [0, 1, 2, 17, 123])
@pytest.mark.parametrize("columns", [200, 208])
def test_equals_the_exact_product(columns, rows, form, has_bias, dtype):
    """Within the roundings of the output's dtype: both ways sum in fp32."""
    packed, weight = packed_and_its_weight(96, columns, dtype, form)
    x, bias = torch.randn(rows, columns).to(dtype), torch.randn(96).to(dtype) if has_bias else None
    exact = F.linear(x.double(), weight.double(), bias.double() if bias is not None else None)
    tolerance = 1e-4 if dtype is torch.float32 else 6e-2
    with torch.inference_mode():
        torch.testing.assert_close(packed(x, bias).double(), exact, atol=tolerance, rtol=tolerance / 4)


def test_it_has_the_form_that_was_asked_for_or_what_there_is_of_it():
    if not can_pack(torch.bfloat16):
        pytest.skip("this torch or this CPU has no packed linears")
    weight, odd = torch.randn(32, 16).bfloat16(), torch.randn(9, 7).bfloat16()
    has_loops = loops_for(weight) is not None
    for form in (WeightForm.ONEDNN, WeightForm.LOOPS, WeightForm.BOTH):
        assert pack_weight(weight, form).form is (form if has_loops else WeightForm.ONEDNN)
        assert pack_weight(odd, form).form is WeightForm.ONEDNN


def test_what_is_given_up_is_gone_and_the_rest_is_the_same_function():
    weight = torch.randn(16, 16).bfloat16()
    packed = pack_weight(weight, WeightForm.BOTH)
    if packed is None or packed.form is not WeightForm.BOTH:
        pytest.skip("this machine runs no compiled loops")
    for form in (WeightForm.ONEDNN, WeightForm.LOOPS):
        alone = packed.by_form(form)
        assert (packed.form, alone.form) == (WeightForm.BOTH, form)
        for num_rows in (0, 1, 40):
            x = torch.randn(num_rows, 16).bfloat16()
            with torch.inference_mode():
                torch.testing.assert_close(alone(x, None), F.linear(x, weight), atol=6e-2, rtol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_are_not_packed(dtype):
    assert not can_pack(dtype)
    assert pack_weight(torch.zeros(4, 4, dtype=dtype), WeightForm.BOTH) is None
