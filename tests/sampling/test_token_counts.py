from __future__ import annotations

import torch

from service.sampling.token_counts import TokenCounts


def test_counts_what_is_noted():
    counts = TokenCounts(10, torch.device("cpu"))
    slot = counts.take()
    counts.note_prompt(slot, torch.tensor([3, 3, 4]))
    counts.note_generated(slot, torch.tensor([4, 5, 5]))
    counts.note_one_each(torch.tensor([slot], dtype=torch.int32), torch.tensor([5]))
    counts.note_prompt(slot, torch.tensor([5]))
    assert counts.table[slot].tolist() == [0, 0, 0, 1, 3, 7, 0, 0, 0, 0]


def test_slots_grow_and_are_clean_when_taken_again():
    counts = TokenCounts(4, torch.device("cpu"))
    slots = [counts.take() for _ in range(20)]
    assert len(set(slots)) == 20
    for slot in slots:
        counts.note_generated(slot, torch.tensor([slot % 4]))
    assert all(counts.table[slot, slot % 4] == 2 for slot in slots)
    counts.release(slots[7])
    assert counts.take() == slots[7]
    assert not counts.table[slots[7]].any()


def test_its_bytes_are_known_before():
    counts = TokenCounts(10, torch.device("cpu"))
    counts.take()
    assert TokenCounts.num_bytes(len(counts.table), 10) == counts.table.nbytes
