"""Iterations computed in parts: what memory that runs out may change is the time, not the ids."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from service.core.iteration_plan import ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.halving import Part, halves, num_tokens, parts_of, places
from service.runner.selective_batching import flatten
from service.runner.sequence_rows import SequenceRows
from tests.models.checkpoints import llama, random_prompts
from tests.runner.loading import load
from tests.runner.plan_player import PlanPlayer


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
    waiting, computed = [parts_of(scheduled, whole)], {s.sequence_id: s.num_computed_tokens for s in scheduled}
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


@pytest.mark.parametrize("largest", [40, 3, 1])
def test_memory_that_runs_out_changes_no_id(largest, tmp_path, monkeypatch):
    loaded = load(llama(tmp_path))
    prompts = random_prompts(10, longest=60)
    params = [SamplingParams(max_tokens=4, temperature=0.9 * (i % 2), seed=i) for i in range(10)]
    want = PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate(prompts, params, chunk=33)
    model, sizes = loaded.runner._model, []

    def forward(token_ids, *arguments):
        if len(token_ids) > largest:
            raise torch.OutOfMemoryError("injected")
        sizes.append(len(token_ids))
        return type(model).forward(model, token_ids, *arguments)

    monkeypatch.setattr(loaded.runner, "_model", Replaced(model, forward))
    assert PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate(prompts, params, chunk=33) == want
    assert max(sizes) <= largest


def test_one_token_that_does_not_fit_is_a_fault(tmp_path, monkeypatch):
    loaded = load(llama(tmp_path))

    def forward(*arguments):
        raise torch.OutOfMemoryError("injected")

    monkeypatch.setattr(loaded.runner, "_model", Replaced(loaded.runner._model, forward))
    with pytest.raises(torch.OutOfMemoryError):
        PlanPlayer(loaded.runner, loaded.num_blocks, 16).generate([[1, 2, 3]], SamplingParams(max_tokens=1))


class Replaced:
    """A model with another forward pass."""

    def __init__(self, model, forward):
        self._model = model
        self._forward = forward

    def __call__(self, *arguments):
        return self._forward(*arguments)

    def compute_logits(self, hidden):
        return self._model.compute_logits(hidden)
