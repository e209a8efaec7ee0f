"""tests/sampling/test_vocab_shard.py: what ranks make of it is what one rank draws."""

from __future__ import annotations

import pytest
import torch

from kernels.best_of_shard import best_of_shard_reference, best_of_shard_triton, largest_of_shard
from kernels.sample_tokens import sample_tokens_reference
from tests.kernels.lanes import GPU, INTERPRET

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

SEEDS, POSITIONS = torch.arange(6) * 10**15 - 7, torch.arange(6) * 3


def test_the_largest_is_the_lowest_id_of_its_kind():
    logits = torch.tensor([[1.0, 3.0, 3.0], [5.0, 5.0, 4.0]]).bfloat16()
    largest, token = largest_of_shard(logits, 16)
    assert largest.dtype is torch.float32 and largest.tolist() == [3.0, 5.0]
    assert token.dtype is torch.int32 and token.tolist() == [17, 16]


@pytest.mark.parametrize("lane", [INTERPRET, GPU])
@pytest.mark.parametrize("cut", [(0, 1500), (16, 1500), (1024, 1500), (400, 1488)])
def test_the_kernels_best_is_the_references(lane, cut):
    """Of any part, and of one that is the whole the draw itself."""
    first, stop = cut
    logits = torch.randn(6, 1500) * 3
    temperature = torch.tensor([1.0, 0.5, 2.0] * 2)
    largest = logits.max(-1).values
    part = logits[:, first:stop]
    arguments = largest, temperature, SEEDS, POSITIONS
    score, token = best_of_shard_reference(part, *arguments, first)
    got_score, got_token = best_of_shard_triton(lane.put(part), *map(lane.put, arguments), first)
    torch.testing.assert_close(got_score.cpu(), score, atol=1e-5, rtol=1e-5)
    assert torch.equal(got_token.cpu().int(), token)
    if len(range(*cut)) == logits.shape[1]:
        zeros, ones = torch.zeros(6, dtype=torch.int32), torch.ones(6)
        want = sample_tokens_reference(logits, temperature, zeros, ones, SEEDS, POSITIONS)
        assert torch.equal(token.long(), want)
