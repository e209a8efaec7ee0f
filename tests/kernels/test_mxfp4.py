from __future__ import annotations

import pytest
import torch

from kernels.mxfp4 import dequantize_mxfp4, halves_apart

NUMBERS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_number_with_every_scale_that_weights_have(dtype):
    halves = torch.arange(32) % 16
    numbers = halves_apart((halves[::2] | halves[1::2] << 4).to(torch.uint8).expand(40, 16))
    scales = torch.arange(100, 140, dtype=torch.uint8)[:, None]
    want = torch.tensor(NUMBERS * 2, dtype=torch.float64) * 2.0 ** (scales.double() - 127)
    assert torch.equal(dequantize_mxfp4(numbers, scales, dtype).double(), want)
