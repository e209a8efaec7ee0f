from __future__ import annotations

import pytest
import torch

from kernels.packed_attention import PackedSequences, packed_attention, packed_attention_backward
from tests.kernels.lanes import GPU
from tests.kernels.tolerances import assert_close

SCALE = 0.3
CASES = [
    pytest.param([1], 2, 2, None, id="one token"),
    pytest.param([5, 1, 17], 4, 2, None, id="groups"),
    pytest.param([3, 300, 2], 2, 1, None, id="more queries than are held at once"),
    pytest.param([7, 30], 4, 2, 4, id="window"),
    pytest.param([300, 9], 2, 2, 40, id="long window"),
    pytest.param([6], 2, 2, 1, id="window of its own token"),
]


def sequences_of(lengths, device="cpu"):
    starts = torch.tensor([0, *lengths]).cumsum(0).int().to(device)
    return PackedSequences(tuple(lengths), starts, max(lengths))


def exact_attention(query, key, value, lengths, window):
    """Token by token."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    rows, lse, start = [], [], 0
    for length in lengths:
        for t in range(start, start + length):
            first = start if window is None else max(start, t - window + 1)
            scores = SCALE * torch.einsum("hd,shd->hs", query[t], key[first : t + 1])
            rows.append(torch.einsum("hs,shd->hd", scores.softmax(-1), value[first : t + 1]))
            lse.append(scores.logsumexp(-1))
        start += length
    return torch.stack(rows), torch.stack(lse, 1)


def packed_heads(num_tokens, heads, kv_heads, head_dim, dtype, device):
    """Views of one packed projection, with NaN in what is nobody's."""
    packed = torch.full((num_tokens, heads + 2 * kv_heads, head_dim + 8), float("nan"), dtype=dtype)
    packed[..., :head_dim] = torch.randn(num_tokens, heads + 2 * kv_heads, head_dim)
    return packed.to(device)[..., :head_dim].split([heads, kv_heads, kv_heads], 1)


def check(lengths, heads, kv_heads, window, head_dim, dtype, device):
    query, key, value = packed_heads(sum(lengths), heads, kv_heads, head_dim, dtype, device)
    sequences = sequences_of(lengths, device)
    exact = [x.double().requires_grad_() for x in (query, key, value)]
    expected, expected_lse = exact_attention(*exact, lengths, window)
    out, lse = packed_attention(query, key, value, sequences, SCALE, window)
    assert_close(out, expected)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-3, atol=1e-3 if dtype is torch.bfloat16 else 1e-5)
    grad = torch.randn_like(out)
    expected.backward(grad.double())
    got = packed_attention_backward(grad, query, key, value, out, lse, sequences, SCALE, window)
    for one, of in zip(got, exact, strict=True):
        if dtype is torch.float32:
            assert_close(one, of.grad)
        else:
            assert (one.double() - of.grad).norm() < 0.02 * max(1, of.grad.norm())
    return grad, query, key, value, out, lse, sequences, SCALE, window


@pytest.mark.parametrize(("lengths", "heads", "kv_heads", "window"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_is_each_sequences_own_attention_and_its_gradient(lengths, heads, kv_heads, window, dtype):
    check(lengths, heads, kv_heads, window, 8, dtype, "cpu")


@pytest.mark.parametrize("lane", [GPU])
@pytest.mark.parametrize(("lengths", "heads", "kv_heads", "window"), CASES)
def test_flash_attention_is_the_reference(lengths, heads, kv_heads, window, lane):
    inputs = check(lengths, heads, kv_heads, window, 64, torch.bfloat16, lane.device)
    first, second = (packed_attention_backward(*inputs) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True)), "the same bits each time"
