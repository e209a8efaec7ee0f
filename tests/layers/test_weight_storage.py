from __future__ import annotations

import pytest
import torch

from kernels.quantized_weight import FP8, quantize_fp8_weight
from service.layers.weight_storage import QuantizedRows


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_quantized_as_they_come_and_others_stay(dtype):
    elements, scales = torch.zeros(9, 40, dtype=FP8), torch.zeros(9, 1)
    weight = torch.randn(4, 40).to(dtype)
    rows = QuantizedRows(elements[3:7], scales[3:7])
    assert (rows.shape, rows.dtype, rows.nbytes) == ((4, 40), torch.float32, 4 * 40 + 4 * 4)
    rows.copy_(weight)
    want, want_scales = quantize_fp8_weight(weight)
    assert torch.equal(elements[3:7].float(), want.float()) and torch.equal(scales[3:7], want_scales)
    for outside in (slice(0, 3), slice(7, 9)):
        assert not elements[outside].float().any() and not scales[outside].any()


def test_columns_are_rows_turned():
    elements, scales = torch.zeros(4, 40, dtype=FP8), torch.zeros(4, 1)
    columns = QuantizedRows(elements, scales).mT
    weight = torch.randn(4, 40)
    assert columns.shape == (40, 4) and columns.mT.shape == (4, 40)
    columns.copy_(weight.T)
    assert torch.equal(elements.float(), quantize_fp8_weight(weight)[0].float())
