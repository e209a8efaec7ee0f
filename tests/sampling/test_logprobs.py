from __future__ import annotations

import pytest
import torch

from service.sampling.logprobs import asked_logprobs, num_top_for, score


@pytest.mark.parametrize(("asked", "vocab_size", "computed"), [(0, 100, 0), (1, 100, 8), (20, 100, 20), (21, 40, 40)])
def test_few_numbers_serve_all(asked, vocab_size, computed):
    assert num_top_for(asked, vocab_size) == computed


@pytest.mark.parametrize("rows", [1, 127, 300])
def test_scores_are_the_log_softmax_and_never_more_than_a_slice_is_held(rows):
    head = torch.randn(50, 16)
    hidden, targets = torch.randn(rows, 16), torch.randint(0, 50, (rows,))
    held = []

    def compute_logits(x):
        held.append(len(x))
        return x @ head.T

    scores = score(hidden, targets, compute_logits, 8)
    want = (hidden @ head.T).log_softmax(-1)
    assert max(held) <= 128
    torch.testing.assert_close(scores.logprobs.chosen, want.gather(-1, targets[:, None])[:, 0])
    torch.testing.assert_close(scores.logprobs.top, want.topk(8).values)
    order = want.argsort(-1, descending=True)
    assert torch.equal(order.gather(-1, scores.ranks[:, None] - 1)[:, 0], targets)


@pytest.mark.parametrize("asking", [[0], [5, 130, 299]])
def test_tokens_that_are_asked_for_have_their_log_softmax(asking):
    logits = torch.randn(300, 40)
    rows, ids = torch.tensor(asking), torch.randint(0, 40, (len(asking), 4))
    want = logits.log_softmax(-1)[rows].gather(-1, ids)
    assert torch.equal(asked_logprobs(logits, rows, ids), want)
