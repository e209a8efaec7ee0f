from __future__ import annotations

import pytest
import torch

from kernels.rotary_embedding import rotary_embedding, rotary_embedding_triton
from tests.kernels.lanes import LANES
from tests.kernels.tolerances import DTYPES, assert_close


def tables(angles):
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def naive(x, angles):
    """Each pair (i, i + R/2) as a complex number turned by its angle."""
    half = angles.shape[-1]
    pairs = torch.complex(x[..., :half].double(), x[..., half : 2 * half].double())
    turned = pairs * torch.polar(torch.ones_like(angles.double()), angles.double())[:, None]
    return torch.cat((turned.real, turned.imag, x[..., 2 * half :].double()), -1)


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("tokens", [0, 1, 17])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 64), (20, 20), (80, 32), (2, 2)])
def test_turns_pairs_in_place(tokens, head_dim, rotary_dim, dtype, lane):
    x = lane.put(torch.randn(tokens, 5, head_dim).to(dtype))
    angles = lane.put(torch.randn(tokens, rotary_dim // 2) * 3)
    want = naive(x, angles)
    lane(rotary_embedding, rotary_embedding_triton)(x, *tables(angles))
    assert_close(x, want)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_leaves_the_values_of_a_packed_projection_alone(dtype, lane):
    packed = torch.randn(123, 37, 64).to(dtype) if lane.name == "gpu" else torch.randn(17, 37, 64).to(dtype)
    packed[:, 33:] = float("nan")
    packed = lane.put(packed)
    angles = lane.put(torch.randn(len(packed), 32))
    want = naive(packed[:, :33], angles)
    lane(rotary_embedding, rotary_embedding_triton)(packed[:, :33], *tables(angles))
    assert_close(packed[:, :33], want)
    assert packed[:, 33:].isnan().all()


def test_angle_zero_changes_nothing():
    x = torch.randn(3, 2, 8)
    kept = x.clone()
    rotary_embedding(x, *tables(torch.zeros(3, 4)))
    assert torch.equal(x, kept)


def test_is_differentiable():
    leaf = torch.randn(3, 2, 8, requires_grad=True)
    angles = torch.randn(3, 4)
    x = leaf * 1
    rotary_embedding(x, *tables(angles))
    weights = torch.randn(3, 2, 8)
    (x * weights).sum().backward()
    # A rotation is orthogonal: the gradient is the weights turned back.
    assert_close(leaf.grad, naive(weights, -angles))
