from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.prefill_sequences import attend_by_scores, gather_sequence, prefill_sequence, visible_cells

CPU = torch.device("cpu")


@pytest.mark.parametrize("sliding_window", [None, 1, 3, 100])
@pytest.mark.parametrize(("num_queries", "context_len"), [(1, 1), (5, 5), (2, 7), (1, 9)])
def test_a_query_sees_what_came_before_it_within_the_window(num_queries, context_len, sliding_window):
    visible = visible_cells(num_queries, context_len, sliding_window, CPU)
    for row in range(num_queries):
        position = context_len - num_queries + row
        first = 0 if sliding_window is None else max(0, position + 1 - sliding_window)
        assert visible[row].tolist() == [first <= cell <= position for cell in range(context_len)]


def test_a_sequence_has_a_mask_only_behind_a_prefix_and_no_block_too_many():
    block_ids = torch.tensor([4, 1, 3, 0, 0], dtype=torch.int32)
    whole = prefill_sequence(block_ids, slice(2, 12), 10, 4)
    assert whole.mask is None
    assert whole.block_ids.tolist() == [4, 1, 3]
    chunk = prefill_sequence(block_ids, slice(0, 2), 5, 4)
    assert chunk.block_ids.tolist() == [4, 1]
    assert chunk.mask.tolist() == [[True] * 4 + [False], [True] * 5]
    assert (chunk.hidden == 0).tolist() == chunk.mask.tolist()


def test_cells_are_gathered_in_the_order_of_the_tokens():
    cache = torch.arange(5 * 2 * 3 * 2.0).view(5, 2, 3, 2)
    sequence = prefill_sequence(torch.tensor([3, 0, 4], dtype=torch.int32), slice(0, 5), 5, 2)
    cells = gather_sequence(cache, sequence, cache.dtype)
    assert cells.shape == (1, 3, 5, 2)
    for token, (block, offset) in enumerate([(3, 0), (3, 1), (0, 0), (0, 1), (4, 0)]):
        assert torch.equal(cells[0, :, token], cache[block, offset])


@pytest.mark.parametrize(("num_queries", "context_len"), [(6, 6), (3, 9)])
def test_scores_all_at_once_give_what_sdpa_gives(num_queries, context_len):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1, 6, num_queries, 8, generator=generator)
    keys, values = (torch.randn(1, 2, context_len, 8, generator=generator) for _ in range(2))
    visible = visible_cells(num_queries, context_len, None, CPU)
    hidden = torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))
    got = attend_by_scores(rows, keys, values, hidden, 0.3)
    want = F.scaled_dot_product_attention(rows, keys, values, attn_mask=visible, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(got, want)
