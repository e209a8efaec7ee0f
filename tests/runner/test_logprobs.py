from __future__ import annotations

import pytest
import torch

from kernels.token_logprobs import token_logprobs
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import ScheduledSequence
from service.runner.logprobs import DrawLogprobs, score_prompts
from service.runner.sequence_rows import SequenceRows
from tests.runner.plans import flat

CPU = torch.device("cpu")


def share(sequence_id, ids, targets, num):
    params = SamplingParams(max_tokens=1, num_prompt_logprobs=num)
    return ScheduledSequence(
        sequence_id, sequence_id + 1, tuple(ids), 0, 0, (sequence_id,), params, (), None, tuple(targets)
    )


def test_each_sequence_gets_the_scores_of_its_own_rows():
    shares = [share(0, (4, 5, 6), (5, 6), 2), share(1, (9,), (), None), share(2, (7,), (8,), 0)]
    batch = flat(shares, SequenceRows(4, 4), 16)
    head, hidden = torch.randn(30, 8), torch.randn(5, 8)
    scores = score_prompts(shares, batch, hidden, lambda x: x @ head.T, 30, CPU)
    assert scores is not None
    by_id = dict(scores.wait())
    assert sorted(by_id) == [0, 2]
    want = (hidden @ head.T).log_softmax(-1)
    first, last = batch.token_starts[0], batch.token_starts[2]
    got = [by_id[0][0].chosen, by_id[0][1].chosen, by_id[2][0].chosen]
    assert got == pytest.approx([float(want[first, 5]), float(want[first + 1, 6]), float(want[last, 8])])
    assert [t for t, _ in by_id[0][1].top] == want[first + 1].topk(2).indices.tolist()
    assert by_id[2][0].top == ()
    assert by_id[2][0].rank == int((want[last] > want[last, 8]).sum()) + 1


def test_nobody_with_targets_costs_nothing():
    shares = [share(1, (9,), (), None)]
    batch = flat(shares, SequenceRows(4, 4), 16)
    assert score_prompts(shares, batch, torch.zeros(1, 8), lambda x: 1 / 0, 30, CPU) is None


def test_each_row_gets_what_it_asked_for():
    logits = torch.randn(3, 40)
    ids = torch.tensor([5, 6, 7])
    first, second, third = DrawLogprobs(token_logprobs(logits, ids, 8), [2, None, 0]).wait()
    assert second is None
    want = logits.log_softmax(-1)
    assert [token_id for token_id, _ in first.top] == want[0].topk(2).indices.tolist()
    assert third.top == ()
    assert (first.chosen, third.chosen) == pytest.approx((float(want[0, 5]), float(want[2, 7])))
    assert first.rank is None
