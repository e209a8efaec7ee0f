from __future__ import annotations

import torch

from service.core.scheduled_sequence import PENDING_TOKEN_ID
from service.runner.drawn_ids import DrawnIds


def test_what_was_drawn_is_filled_in_where_it_is_pending():
    drawn = DrawnIds(4, torch.device("cpu"))
    drawn.note(torch.tensor([2, 0]), torch.tensor([22, 11]))
    drawn.note(torch.tensor([2]), torch.tensor([33]))
    token_ids = torch.tensor([PENDING_TOKEN_ID, 7, PENDING_TOKEN_ID, 8])
    drawn.fill_in(token_ids, torch.tensor([2, 0, 0]))
    assert token_ids.tolist() == [33, 7, 11, 8]


def test_grows_and_keeps_what_it_has():
    drawn = DrawnIds(1, torch.device("cpu"))
    drawn.note(torch.tensor([0]), torch.tensor([5]))
    drawn.grow(3)
    drawn.note(torch.tensor([2]), torch.tensor([6]))
    token_ids = torch.full((2,), PENDING_TOKEN_ID)
    drawn.fill_in(token_ids, torch.tensor([0, 2]))
    assert token_ids.tolist() == [5, 6]
