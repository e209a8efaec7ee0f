from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from service.layers.linear import Linear, can_pack, pack_weight


def filled(linear: Linear, dtype: torch.dtype) -> Linear:
    for parameter in linear.parameters():
        parameter.data = torch.randn(parameter.shape).to(dtype)
    return linear


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [0, 1, 2, 17, 123])
def test_packed_equals_plain(rows, bias, dtype):
    """Packing changes the layout and the order of summation, nothing else. fp32 1e-4, bf16 a few of its roundings."""
    linear = filled(Linear(48, 33, bias=bias), dtype)
    x = torch.randn(rows, 48).to(dtype)
    with torch.inference_mode():
        plain = F.linear(x, linear.weight, linear.bias)
        linear.pack()
        tolerance = 1e-4 if dtype is torch.float32 else 6e-2
        torch.testing.assert_close(linear(x), plain, atol=tolerance, rtol=tolerance)


def test_packed_gives_up_the_plain_weight():
    linear = filled(Linear(16, 8), torch.float32)
    linear.pack()
    if not can_pack(torch.float32):
        pytest.skip("this torch has no packed linears")
    assert [name for name, _ in linear.named_parameters()] == []


def test_without_onednn_the_plain_path_stays(monkeypatch):
    monkeypatch.setattr("service.layers.linear.can_pack", lambda dtype: False)
    linear = filled(Linear(16, 8), torch.float32)
    linear.pack()
    x = torch.randn(3, 16)
    assert torch.equal(linear(x), F.linear(x, linear.weight))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_dtypes_are_not_packed(dtype):
    assert pack_weight(torch.zeros(4, 4, dtype=dtype)) is None


def test_parts_are_views_of_the_merged_matrix():
    linear = filled(Linear(6, 4, 2, 2, bias=True), torch.float32)
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
    linear = filled(Linear(6, 4), torch.float32)
    x = torch.randn(3, 6, requires_grad=True)
    linear(x).sum().backward()
    torch.testing.assert_close(x.grad, linear.weight.sum(0).expand(3, 6))
