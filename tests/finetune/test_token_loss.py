from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from service.finetune import token_loss as module
from service.finetune.token_loss import VocabWeight, token_loss


@pytest.mark.parametrize("num_rows", [0, 1, 17])
@pytest.mark.parametrize("rows_a_chunk", [1, 5, 100])
def test_is_autograds_in_whatever_chunks(num_rows: int, rows_a_chunk: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_CHUNK_BYTES", rows_a_chunk * 4 * 40)
    hidden, weight, targets = torch.randn(num_rows, 8), torch.randn(40, 8), torch.randint(40, (num_rows,))
    targets[::2] = (hidden @ weight.t()).argmax(-1)[::2]
    exact = hidden.clone().requires_grad_()
    logits = exact @ weight.t()
    loss = F.cross_entropy(logits, targets, reduction="sum")
    (0.3 * loss).backward()
    sums, gradient = token_loss(hidden, targets, VocabWeight(weight, range(len(weight)), len(weight)), 0.3)
    torch.testing.assert_close(sums.losses.float(), loss.detach())
    assert sums.hits == (logits.argmax(-1) == targets).sum()
    torch.testing.assert_close(gradient, exact.grad)


def test_without_a_backward_pass_there_is_no_gradient():
    head = VocabWeight(torch.randn(40, 8), range(40), 40)
    sums, gradient = token_loss(torch.randn(3, 8), torch.tensor([1, 2, 3]), head, None)
    assert gradient is None
    doubled = sums.add(sums)
    assert doubled.losses == 2 * sums.losses
