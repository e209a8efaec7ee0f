from __future__ import annotations

import pytest
import torch

from kernels.attention_tiles import join_split
from kernels.optional_triton import tl, triton
from tests.kernels.lanes import LANES


@triton.jit
def _join_kernel(highest_ptr, total_ptr, acc_ptr, ROWS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr):
    """[SPLITS, ROWS], and acc with [.., DIM] behind: all splits joined take the first one's place."""
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    cell = row[:, None] * DIM + dim[None, :]
    highest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for split in range(SPLITS):
        highest, total, acc = join_split(
            highest, total, acc, tl.load(highest_ptr + split * ROWS + row), tl.load(total_ptr + split * ROWS + row),
            tl.load(acc_ptr + split * ROWS * DIM + cell),
        )  # fmt: skip
    tl.store(highest_ptr + row, highest)
    tl.store(total_ptr + row, total)
    tl.store(acc_ptr + cell, acc)


def joined(highest, total, acc):
    tensors = [t.contiguous().clone() for t in (highest, total, acc)]
    _join_kernel[(1,)](*tensors, ROWS=acc.shape[1], DIM=acc.shape[2], SPLITS=len(acc))
    return [t[0] for t in tensors]


@pytest.mark.parametrize("lane", LANES[1:])
def test_splits_that_see_nothing_change_no_bits_and_others_make_one_softmax(lane):
    scores, values = torch.randn(3, 4, 7) * 5, torch.randn(3, 7, 16)
    highest = scores.amax(2)
    weights = torch.exp2(scores - highest[..., None])
    some = [lane.put(t) for t in (highest, weights.sum(2), weights @ values)]
    nothing = [torch.full_like(some[0][:1], -torch.inf), torch.zeros_like(some[1][:1]), torch.zeros_like(some[2][:1])]
    _, total, acc = joined(*some)
    want = torch.exp2(scores.double()).permute(1, 0, 2).flatten(1)
    want = (want / want.sum(1, keepdim=True)) @ values.double().flatten(0, 1)
    torch.testing.assert_close((acc / total[:, None]).double().cpu(), want, atol=1e-5, rtol=1e-5)
    for place in range(4):
        with_nothing = [torch.cat([t[:place], n, t[place:]]) for t, n in zip(some, nothing, strict=True)]
        assert all(torch.equal(a, b) for a, b in zip(joined(*with_nothing), joined(*some), strict=True))
    assert torch.equal(joined(*(t[:1] for t in some))[2], some[2][0])
