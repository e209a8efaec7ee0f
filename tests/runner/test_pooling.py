from __future__ import annotations

import numpy as np
import pytest
import torch

from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import ScheduledSequence
from service.runner.pooling import pool
from service.runner.sequence_rows import SequenceRows
from tests.runner.plans import flat

CPU = torch.device("cpu")


def share(sequence_id, num_tokens, num_pooled):
    params = SamplingParams(max_tokens=0, pooling="mean")
    ids = tuple(range(1, 1 + num_tokens))
    return ScheduledSequence(sequence_id, sequence_id + 1, ids, 0, 0, (sequence_id,), params, (), num_pooled=num_pooled)


def pooled(shares, hidden):
    batch = flat(shares, SequenceRows(8, 4), 16)
    states = pool(shares, batch, hidden(batch.num_tokens), CPU)
    return batch, None if states is None else dict(states.wait())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_sequence_gets_the_sum_of_its_own_last_rows(dtype):
    rows = torch.randn(9, 8, dtype=dtype)
    shares = [share(0, 3, 3), share(1, 1, 1), share(2, 2, 0), share(3, 3, 2)]
    batch, got = pooled(shares, lambda num: rows[:num])
    starts = batch.token_starts.tolist()
    assert sorted(got) == [0, 1, 3]
    for sequence_id, first, num in ((0, starts[0], 3), (1, starts[1], 1), (3, starts[3] + 1, 2)):
        want = rows[first : first + num].sum(0, dtype=torch.float32)
        assert got[sequence_id].tolist() == want.tolist()


def test_last_tokens_alone_are_taken_as_they_are():
    rows = torch.randn(4, 8)
    batch, got = pooled([share(0, 3, 1), share(1, 1, 1)], lambda num: rows[:num])
    ends = batch.token_starts + np.array([2, 0])
    assert [got[0].tolist(), got[1].tolist()] == rows[ends.tolist()].tolist()


def test_nobody_who_pools_costs_nothing():
    assert pooled([share(0, 2, 0)], lambda num: torch.full((num, 8), torch.nan))[1] is None
