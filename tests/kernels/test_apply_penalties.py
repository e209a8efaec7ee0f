from __future__ import annotations

import pytest
import torch

from kernels.apply_penalties import apply_penalties, apply_penalties_triton, count_tokens, count_tokens_triton
from tests.kernels.lanes import GPU, LANES
from tests.kernels.tolerances import DTYPES, assert_close


def naive(logit, count, repetition, presence, frequency):
    if count > 0:
        logit = logit / repetition if logit > 0 else logit * repetition
    generated = count // 2
    return logit - frequency * generated - (presence if generated else 0)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (5, 123), (3, 2500)])
def test_follows_the_formula(rows, size, dtype, lane):
    packed = torch.full((rows, size + 3), float("nan"), dtype=dtype)
    packed[:, :size] = torch.randn(rows, size).to(dtype) * 3
    counts = torch.randint(0, 8, (7, size), dtype=torch.int32)
    counts[torch.rand(7, size) < 0.5] = 0
    slots = torch.randperm(7)[:rows].to(torch.int32)
    if rows > 2:
        slots[1] = -1
    repetition, presence, frequency = torch.rand(rows) + 0.5, torch.rand(rows) * 2, torch.rand(rows) - 0.5
    want = packed[:, :size].double().clone()
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            for token, count in enumerate(counts[slot].tolist()):
                factors = float(repetition[row]), float(presence[row]), float(frequency[row])
                want[row, token] = naive(float(want[row, token]), count, *factors)
    on_device = lane.put(packed)
    arguments = [lane.put(t) for t in (counts, slots, repetition, presence, frequency)]
    lane(apply_penalties, apply_penalties_triton)(on_device[:, :size], *arguments)
    assert_close(on_device[:, :size].cpu(), want)
    assert on_device[:, size:].isnan().all()


@pytest.mark.parametrize("lane", LANES)
def test_an_unseen_token_keeps_its_bits_and_a_forbidden_one_stays_forbidden(lane):
    logits = torch.tensor([[0.1, float("-inf"), 3.14159, float("-inf")]])
    counts = torch.tensor([[0, 2, 0, 0]], dtype=torch.int32)
    on_device = lane.put(logits)
    one = torch.ones(1)
    arguments = [lane.put(t) for t in (counts, torch.zeros(1, dtype=torch.int32), 2 * one, one, one)]
    lane(apply_penalties, apply_penalties_triton)(on_device, *arguments)
    assert torch.equal(on_device.cpu(), logits)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("rows", [0, 1, 17, 200])
def test_counts_what_was_drawn(rows, lane):
    counts = torch.randint(0, 2, (205, 31), dtype=torch.int32)
    slots = torch.randperm(205)[:rows].to(torch.int32)
    token_ids = torch.randint(0, 31, (rows,))
    slots[5:8], token_ids[9:12] = -1, -1
    want = counts.clone()
    for slot, token in zip(slots.tolist(), token_ids.tolist(), strict=True):
        if slot >= 0 and token >= 0:
            want[slot, token] += 2
    on_device = lane.put(counts)
    lane(count_tokens, count_tokens_triton)(on_device, lane.put(slots), lane.put(token_ids))
    assert torch.equal(on_device.cpu(), want)


@pytest.mark.parametrize("lane", [GPU])
def test_counts_beyond_int32(lane):
    num_slots = 2**31 // 128256 + 2
    counts = torch.zeros(num_slots, 128256, dtype=torch.int32, device=lane.device)
    slots = torch.tensor([num_slots - 1], dtype=torch.int32, device=lane.device)
    count_tokens(counts, slots, torch.tensor([128255], device=lane.device))
    assert int(counts[-1, -1]) == 2
    logits = torch.zeros(1, 128256, device=lane.device)
    one = torch.ones(1, device=lane.device)
    apply_penalties(logits, counts, slots, one, one, one)
    assert float(logits[0, -1]) == -2
    assert float(logits.sum()) == -2
