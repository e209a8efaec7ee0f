from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from service.layers.linear import Linear
from service.layers.packed_weight import WeightForm, can_pack


def filled(linear: Linear, dtype: torch.dtype = torch.float32) -> Linear:
    for parameter in linear.parameters():
        parameter.data = torch.randn(parameter.shape).to(dtype)
    return linear


@pytest.mark.parametrize("form", WeightForm)
@pytest.mark.parametrize("bias", [False, True])
def test_packed_is_the_same_function(bias, form):
    linear = filled(Linear(48, 33, bias=bias))
    x = torch.randn(5, 48)
    with torch.inference_mode():
        want = linear(x)
        linear.pack(form)
        torch.testing.assert_close(linear(x), want, atol=1e-4, rtol=1e-4)


def test_packed_gives_up_the_plain_weight():
    linear = filled(Linear(16, 8))
    linear.pack(WeightForm.BOTH)
    if not can_pack(torch.float32):
        pytest.skip("this torch has no packed linears")
    assert [name for name, _ in linear.named_parameters()] == []


def test_without_onednn_the_plain_path_stays(monkeypatch):
    monkeypatch.setattr("service.layers.packed_weight.can_pack", lambda dtype: False)
    linear = filled(Linear(16, 8))
    assert linear.pack(WeightForm.BOTH) is WeightForm.PLAIN
    x = torch.randn(3, 16)
    assert torch.equal(linear(x), F.linear(x, linear.weight))


def test_parts_are_views_of_the_merged_matrix():
    linear = filled(Linear(6, 4, 2, 2, bias=True))
    parts = linear.checkpoint_tensors("q", "k", "v")
    assert {name: tuple(part.shape) for name, part in parts.items()} == {
        "q.weight": (4, 6),
        "k.weight": (2, 6),
        "v.weight": (2, 6),
        "q.bias": (4,),
        "k.bias": (2,),
        "v.bias": (2,),
    }
    parts["k.weight"].fill_(7)
    parts["v.bias"].fill_(8)
    assert (linear.weight[4:6] == 7).all()
    assert not (linear.weight[[0, 1, 2, 3, 6, 7]] == 7).any()
    assert (linear.bias[6:] == 8).all()


def test_gradients_flow_to_the_input():
    linear = filled(Linear(6, 4))
    x = torch.randn(3, 6, requires_grad=True)
    linear(x).sum().backward()
    torch.testing.assert_close(x.grad, linear.weight.sum(0).expand(3, 6))
