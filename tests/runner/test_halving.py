"""Iterations cut in parts."""

from __future__ import annotations

import random

import numpy as np
import pytest

from service.core.iteration_plan import ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.halving import Part, halves, num_tokens, places, whole_parts
from service.runner.selective_batching import flatten
from service.runner.sequence_rows import SequenceRows


def share(sequence_id, token_ids, computed=0):
    blocks = tuple(range(20 * sequence_id, 20 * sequence_id + 20))
    return ScheduledSequence(sequence_id, tuple(token_ids), computed, 0, blocks, SamplingParams(max_tokens=1), ())


@pytest.mark.parametrize("seed", range(20))
def test_the_halves_are_the_whole(seed):
    """Cut again and again, every token is there once, at its place, behind those that it attends to."""
    chance = random.Random(seed)
    scheduled = [
        share(i, chance.sample(range(1000), chance.randint(1, 9)), chance.randint(0, 30))
        for i in range(chance.randint(1, 6))
    ]
    rows = SequenceRows(8, 20)
    whole = flatten(scheduled, rows, 4)
    waiting, computed = [whole_parts(scheduled, whole)], {s.sequence_id: s.num_computed_tokens for s in scheduled}
    ids, positions = np.full(len(whole.token_ids), -1), np.full(len(whole.token_ids), -1)
    while waiting:
        parts = waiting.pop(0)
        if num_tokens(parts) > 1 and chance.random() < 0.6:
            cut = halves(parts)
            assert abs(num_tokens(cut[0]) - num_tokens(cut[1])) <= 1
            waiting[:0] = cut
            continue
        for part in parts:
            assert part.share.num_computed_tokens == computed[part.share.sequence_id]
            computed[part.share.sequence_id] += len(part.share.token_ids)
        batch = flatten([part.share for part in parts], rows, 4)
        there = places(parts, batch)
        assert (ids[there] == -1).all()
        ids[there], positions[there] = batch.token_ids, batch.positions
    assert ids.tolist() == whole.token_ids.tolist()
    assert positions.tolist() == whole.positions.tolist()


def test_a_part_keeps_its_blocks():
    first, second = halves([Part(share(1, (5, 6, 7, 8), 3), 10)])
    assert first == [Part(share(1, (5, 6), 3), 10)]
    assert second == [Part(share(1, (7, 8), 5), 12)]
