from __future__ import annotations

import torch

from service.sampling.sampler import SamplingBatch, sample


def batch(rows, temperature):
    return SamplingBatch(
        temperature=torch.full((rows,), temperature),
        top_k=torch.zeros(rows, dtype=torch.int32),
        top_p=torch.ones(rows),
        seeds=torch.arange(rows),
        positions=torch.arange(rows),
        is_greedy=temperature == 0,
    )


def test_the_greedy_path_equals_the_general_one():
    logits = torch.randn(17, 123)
    logits[3, 5] = float("nan")
    greedy = batch(17, 0.0)
    general = SamplingBatch(
        **{name: getattr(greedy, name) for name in greedy.__slots__ if name != "is_greedy"}, is_greedy=False
    )
    ids = sample(logits, greedy)
    assert torch.equal(ids, sample(logits, general))
    assert int(ids[3]) == -1


def test_a_seed_reproduces_and_another_differs():
    logits = torch.zeros(17, 5000)
    parameters = batch(17, 1.0)
    ids = sample(logits, parameters)
    assert torch.equal(ids, sample(logits, parameters))
    assert len(set(ids.tolist())) > 10
