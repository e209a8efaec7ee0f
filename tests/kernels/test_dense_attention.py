from __future__ import annotations

import torch

from kernels.dense_attention import dense_attention
from tests.kernels.tolerances import assert_close


def test_follows_the_formula():
    query, keys, values = torch.randn(2, 3, 5, 8), torch.randn(2, 1, 7, 8), torch.randn(2, 1, 7, 8)
    mask = torch.ones(5, 7, dtype=torch.bool).tril(2)
    got = dense_attention(query, keys, values, mask, 0.7, 1.5)
    scores = 1.5 * torch.tanh(0.7 * query.double() @ keys.double().transpose(-1, -2) / 1.5)
    weights = scores.exp() * mask
    assert_close(got, weights @ values.double() / weights.sum(-1, keepdim=True))


def test_a_high_cap_is_none():
    query, keys, values = torch.randn(3, 4, 8), torch.randn(3, 6, 8), torch.randn(3, 6, 8)
    want = torch.nn.functional.scaled_dot_product_attention(query, keys, values, scale=0.5)
    assert_close(dense_attention(query, keys, values, torch.ones((), dtype=torch.bool), 0.5, 1e4), want)


def test_a_sink_is_a_cell_without_a_value():
    query, keys, values = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
    sinks, mask = torch.tensor([-2.0, 0.0, 9.0]), torch.ones(5, 7, dtype=torch.bool).tril(2)
    got = dense_attention(query, keys, values, mask, 0.7, sinks=sinks[:, None])
    weights = (0.7 * query.double() @ keys.double().transpose(-1, -2)).exp() * mask
    total = weights.sum(-1, keepdim=True) + sinks.double().exp()[:, None, None]
    assert_close(got, weights @ values.double() / total)
