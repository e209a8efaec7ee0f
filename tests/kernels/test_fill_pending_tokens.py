from __future__ import annotations

import pytest
import torch

from kernels.fill_pending_tokens import fill_pending_tokens, fill_pending_tokens_triton
from tests.kernels.lanes import LANES

PENDING = -2


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize(("num_tokens", "num_decodes"), [(1, 0), (1, 1), (40, 7), (700, 513)])
def test_fills_what_is_pending_and_nothing_else(num_tokens, num_decodes, lane):
    drawn = torch.randint(0, 1000, (2 * num_decodes + 3,))
    rows = torch.randperm(len(drawn))[:num_decodes]
    tokens = torch.randint(0, 1000, (num_tokens,))
    tokens[:num_decodes:2] = PENDING
    want = [int(drawn[rows[i]]) if t == PENDING else t for i, t in enumerate(tokens.tolist())]
    there = lane.put(tokens)
    lane(fill_pending_tokens, fill_pending_tokens_triton)(there, lane.put(rows), lane.put(drawn))
    assert there.tolist() == want


@pytest.mark.parametrize("lane", LANES)
def test_a_failed_draw_becomes_some_valid_id(lane):
    tokens = lane.put(torch.tensor([PENDING, 5]))
    drawn, rows = torch.tensor([7, -1]), torch.tensor([1, 0])
    lane(fill_pending_tokens, fill_pending_tokens_triton)(tokens, lane.put(rows), lane.put(drawn))
    assert tokens.tolist() == [0, 5]
