from __future__ import annotations

import pytest
import torch

from service.models.int8_storage import Int8Storage
from service.models.quantization import Int8Scheme


@pytest.mark.parametrize(
    ("scheme", "in_features", "reason"),
    [
        (Int8Scheme("packed", 32), 96, None),
        (Int8Scheme("packed", 32), 80, "80 input features cannot be split into groups of 32"),
        (Int8Scheme("gptq"), 82, "82 input features are not a multiple of 4"),
        (Int8Scheme("bytes"), 82, None),
    ],
)
def test_why_a_linear_cannot_be_stored(scheme, in_features, reason):
    assert Int8Storage.why_not(scheme, in_features) == reason


def test_of_every_layout_the_same_weight_is_made():
    elements = torch.randint(-128, 128, (8, 64), dtype=torch.int8)
    scales = torch.rand(8, 2)
    words = (elements.int() + 128).to(torch.uint8).view(torch.int32)
    stored = {
        "bytes": {"up.weight": elements, "up.weight_scale": scales},
        "packed": {"up.weight_packed": words, "up.weight_scale": scales},
        "gptq": {"up.qweight": words.T, "up.scales": scales.T},
    }
    for layout, tensors in stored.items():
        storage = Int8Storage(Int8Scheme(layout, 32), (8,), 64)
        places = storage.checkpoint_tensors(("up",))
        assert {name: place.shape for name, place in places.items()} == {n: t.shape for n, t in tensors.items()}
        for name, tensor in tensors.items():
            places[name].copy_(tensor)
        weight = storage.finished(torch.bfloat16)
        assert torch.equal(weight.elements, elements) and torch.equal(weight.scales, scales)


def test_a_tensors_scale_is_given_to_each_row_of_its_part():
    storage = Int8Storage(Int8Scheme("bytes", is_of_tensor=True), (3, 2), 16)
    for part, place in enumerate(("q", "k")):
        tensors = storage.checkpoint_tensors(("q", "k"))
        tensors[f"{place}.weight"].copy_(torch.ones(3 - part, 16, dtype=torch.int8))
        tensors[f"{place}.weight_scale"].copy_(torch.tensor([[part + 1.0]]))
    assert storage.finished(torch.float32).dequantized()[:, 0].tolist() == [1, 1, 1, 2, 2]
