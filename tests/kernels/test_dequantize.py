from __future__ import annotations

import pytest
import torch

from kernels.dequantize import dequantize, dequantize_triton
from tests.kernels.lanes import LANES
from tests.kernels.quantized_weights import KINDS, random_weight


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("features", "size"), [(1, 64), (45, 320)])
def test_is_what_the_elements_stand_for(kind, features, size, lane):
    weight, exact = random_weight(kind, features, size, torch.float32, lane.device)
    got = lane(dequantize, dequantize_triton)(weight)
    torch.testing.assert_close(got.double(), exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("lane", LANES)
def test_an_fp8_row_may_have_any_size(lane):
    weight, exact = random_weight("fp8", 5, 123, torch.float32, lane.device)
    torch.testing.assert_close(lane(dequantize, dequantize_triton)(weight).double(), exact, rtol=1e-6, atol=0)
