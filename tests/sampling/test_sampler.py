from __future__ import annotations

import torch

from service.sampling.sampler import SamplingBatch, sample
from service.sampling.sampling_extras import LogitBias, Penalties, SamplingExtras, TokenBitmask, draw

PENALTIES = {"repetition": 1.5, "presence": 0.7, "frequency": 0.2}


def batch(rows, temperature):
    columns = {
        "temperature": torch.full((rows,), temperature),
        "top_k": torch.zeros(rows, dtype=torch.int32),
        "top_p": torch.ones(rows),
        "seeds": torch.arange(rows),
        "sample_positions": torch.arange(rows),
        **{f"{name}_penalty": torch.full((rows,), value) for name, value in PENALTIES.items()},
        "min_p": torch.full((rows,), 0.1),
    }
    return SamplingBatch(columns, is_greedy=temperature == 0)


def test_the_greedy_path_equals_the_general_one():
    logits = torch.randn(17, 123)
    logits[3, 5] = float("nan")
    greedy = batch(17, 0.0)
    general = SamplingBatch(greedy.columns, is_greedy=False)
    ids = sample(logits, greedy)
    assert torch.equal(ids, sample(logits, general))
    assert int(ids[3]) == -1


def test_a_seed_reproduces_and_another_differs():
    logits = torch.zeros(17, 5000)
    parameters = batch(17, 1.0)
    ids = sample(logits, parameters)
    assert torch.equal(ids, sample(logits, parameters))
    assert len(set(ids.tolist())) > 10


def extras_of_everything(rows, vocab):
    counts = torch.zeros(rows, vocab, dtype=torch.int32)
    counts[:, 3] = 4
    penalties = Penalties(counts, torch.arange(rows, dtype=torch.int32))
    bias = LogitBias(torch.zeros(1, dtype=torch.int32), torch.tensor([5], dtype=torch.int32), torch.tensor([100.0]))
    words = torch.zeros((1, -(-vocab // 32)), dtype=torch.int32)
    words[0, 0] = 1 << 9
    mask_rows = torch.full((rows,), -1, dtype=torch.int32)
    mask_rows[-1] = 0
    return SamplingExtras(penalties, bias, (TokenBitmask(words, mask_rows),), num_top=4)


def test_every_transform_is_applied_and_logprobs_are_of_the_logits_as_they_came():
    logits = torch.randn(6, 40)
    raw = logits.clone()
    drawn = draw(logits, batch(6, 0.0), extras_of_everything(6, 40))
    penalised = raw.clone()
    penalised[:, 3] = torch.where(raw[:, 3] > 0, raw[:, 3] / 1.5, raw[:, 3] * 1.5) - 0.7 - 0.4
    assert drawn.token_ids.tolist() == [5, *penalised[1:5].argmax(-1).tolist(), 9]
    want = raw.log_softmax(-1)
    assert drawn.logprobs is not None
    torch.testing.assert_close(drawn.logprobs.chosen, want.gather(-1, drawn.token_ids[:, None])[:, 0])
    torch.testing.assert_close(drawn.logprobs.top, want.topk(4).values)


def test_asking_for_nothing_is_the_plain_draw():
    logits = torch.randn(6, 400)
    parameters = batch(6, 1.0)
    want = sample(logits.clone(), parameters)
    drawn = draw(logits, parameters, SamplingExtras())
    assert torch.equal(drawn.token_ids, want)
    assert drawn.logprobs is None


def test_min_p_drops_the_improbable():
    logits = torch.zeros(64, 100)
    logits[:, 7] = 5.0
    with_min_p = draw(logits.clone(), batch(64, 1.0), SamplingExtras(has_min_p=True)).token_ids
    assert set(with_min_p.tolist()) == {7}
    assert len(set(sample(logits, batch(64, 1.0)).tolist())) > 1
