from __future__ import annotations

import pytest
import torch

from kernels.paged_attention_decode import decode_batch
from tests.kernels.paged_case import forget_unseen, naive_attention, paged_case
from tests.kernels.tolerances import assert_close


def attend(loops, case, query, window=None):
    batch = decode_batch(case.block_table, case.context_lens, case.key_cache.shape[1])
    out = torch.full(query.shape, float("nan"), dtype=query.dtype)
    loops.paged_attention_decode(
        query, case.key_cache, case.value_cache, batch.block_table, batch.context_lens, batch.rows, 0.2, out, window
    )
    return out


@pytest.mark.parametrize("window", [None, 1, 16, 150])
@pytest.mark.parametrize("block_size", [1, 16, 24])
def test_follows_the_formula_across_tiles(loops, block_size, window):
    """Lengths around the tile of 128 cells; everything else is NaN."""
    lens = [1, 127, 128, 129, 300, 0]
    case = paged_case(lens, block_size, 2, 32, torch.bfloat16)
    query = torch.randn(len(lens), 6, 32).bfloat16()
    got = attend(loops, case, query, window)
    for seq, length in enumerate(lens[:-1]):
        first = 0 if window is None else max(0, length - window)
        assert_close(got[seq], naive_attention(query[seq], case.keys[seq][first:], case.values[seq][first:], 0.2))
    assert not got[-1].any()


def test_what_lies_before_the_window_is_not_read(loops):
    case = paged_case([260, 16, 329], 16, 2, 32, torch.bfloat16)
    query = torch.randn(3, 6, 32).bfloat16()
    got = attend(loops, forget_unseen(case, [1] * 3, 150), query, 150)
    for seq in range(3):
        assert_close(got[seq], naive_attention(query[seq], case.keys[seq][-150:], case.values[seq][-150:], 0.2))


@pytest.mark.parametrize(("head_dim", "heads"), [(64, (3, 1)), (128, (8, 1)), (256, (2, 2)), (96, (5, 1))])
def test_head_dims_and_groups(loops, head_dim, heads):
    """Sums of up to 16 vectors are held at once: all heads of a group, a part of them, or one."""
    case = paged_case([40, 7], 16, heads[1], head_dim, torch.bfloat16)
    query = torch.randn(2, heads[0], head_dim).bfloat16()
    got = attend(loops, case, query)
    for seq in range(2):
        assert_close(got[seq], naive_attention(query[seq], case.keys[seq], case.values[seq], 0.2))


def test_a_sequence_that_is_not_finite_stays_alone(loops):
    case = paged_case([40, 40, 40], 16, 1, 32, torch.bfloat16)
    query = torch.randn(3, 2, 32).bfloat16()
    query[1, 0, 3] = float("nan")
    got = attend(loops, case, query)
    assert got[1, 0].isnan().all()
    assert got[[0, 2]].isfinite().all() and got[1, 1].isfinite().all()
