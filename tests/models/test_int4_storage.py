from __future__ import annotations

import pytest
import torch

from service.models.int4_storage import Int4Storage
from service.models.quantization import Int4Scheme

PACKED = Int4Scheme("packed", 32, has_zeros=False)


@pytest.mark.parametrize(
    ("scheme", "out_features", "in_features", "reason"),
    [
        (PACKED, (8, 16), 96, None),
        (PACKED, (8, 16), 80, "80 input features are not a whole number of groups of 32"),
        (Int4Scheme("packed", None, has_zeros=False), (8,), 80, "80 input features are not a multiple of 32"),
        (Int4Scheme("packed", None, has_zeros=False), (8,), 96, None),
        (PACKED, (8, 12), 96, r"[8, 12] output features are not multiples of 8"),
    ],
)
def test_why_a_linear_cannot_be_stored(scheme, out_features, in_features, reason):
    assert Int4Storage.why_not(scheme, out_features, in_features) == reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_scales_take_as_many_bits_as_in_the_checkpoint(dtype):
    storage = Int4Storage(PACKED, (8,), 64)
    tensors = storage.checkpoint_tensors(("up",))
    assert set(tensors) == {"up.weight_packed", "up.weight_scale"}
    tensors["up.weight_packed"].copy_(torch.zeros(8, 8, dtype=torch.int32))
    scales = (torch.randn(8, 2) / 3).to(dtype)
    tensors["up.weight_scale"].copy_(scales)
    weight = storage.finished(torch.float32)
    assert weight.scales.dtype.itemsize == dtype.itemsize and torch.equal(weight.scales.float(), scales.float())
