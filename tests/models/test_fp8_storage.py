from __future__ import annotations

import pytest
import torch

from service.models.fp8_storage import Fp8Storage
from service.models.quantization import Fp8Scheme

PARTS, SIZE = (40, 8, 20), 64
SCALES = {
    Fp8Scheme("channel"): [(40, 1), (8, 1), (20, 1)],
    Fp8Scheme("tensor"): [(1, 1), (1, 1), (1, 1)],
    Fp8Scheme("block", (16, 32)): [(3, 2), (1, 2), (2, 2)],
}


@pytest.mark.parametrize("scheme", SCALES)
def test_each_rows_scales_are_those_of_its_part_and_block(scheme):
    """However the parts' ends lie to the blocks."""
    storage = Fp8Storage(scheme, PARTS, SIZE)
    tensors = storage.checkpoint_tensors(("q", "k", "v"))
    scales = [tensors[f"{name}.weight_scale"] for name in "qkv"]
    assert [tuple(scale.shape) for scale in scales] == SCALES[scheme]
    for part, scale in enumerate(scales):
        scale.copy_(torch.arange(scale.numel()).view(scale.shape) + 100.0 * part)
    weight = storage.finished(torch.bfloat16)
    assert weight.shape == (68, SIZE) and weight.dtype is torch.bfloat16
    row = 0
    for part, features in enumerate(PARTS):
        for place in range(features):
            its_row = {"channel": place, "tensor": 0, "block": place // 16}[scheme.scales]
            assert weight.scales[row].tolist() == scales[part][its_row].tolist()
            row += 1


def test_the_names_are_the_checkpoints():
    storage = Fp8Storage(Fp8Scheme("block", (16, 32), "weight_scale_inv"), (16,), 32)
    assert set(storage.checkpoint_tensors(("down",))) == {"down.weight", "down.weight_scale_inv"}
    assert set(Fp8Storage(Fp8Scheme("load"), (16,), 32).checkpoint_tensors(("down",))) == {"down.weight"}
