from __future__ import annotations

import random

import numpy as np
import pytest
from service.runner.share_columns import share_columns

from service.core.iteration_plan import LockstepShares, MixedShares, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.sequence_rows import SequenceRows


def random_share(chance, sequence_id, num_tokens, num_samples):
    computed = chance.randint(1, 40)
    return ScheduledSequence(
        sequence_id,
        tuple(chance.randrange(1000) for _ in range(num_tokens)),
        computed,
        0,
        tuple(chance.randrange(1000) for _ in range((computed + num_tokens) // 4 + 1)),
        SamplingParams(max_tokens=9),
        tuple(Sample(sequence_id + 100 * i, chance.randrange(2**62)) for i in range(num_samples)),
    )


@pytest.mark.parametrize("seed", range(20))
def test_columns_say_what_the_shares_say(seed):
    """In lockstep, apart, or both: as if all were plain shares, and the block tables are those."""
    chance = random.Random(seed)
    first = [random_share(chance, i, 1, 1) for i in range(chance.randint(0, 12))]
    apart = [
        random_share(chance, 50 + i, chance.randint(1, 9), chance.randint(0, 3)) for i in range(chance.randint(0, 4))
    ]
    rows, others = SequenceRows(30, 40), SequenceRows(30, 40)
    if first:
        share_columns(first, rows)
        share_columns(first, others)
    further = chance.randint(1, 5)
    grown = {
        place: ((first[place].num_computed_tokens + 1) // 4 + 1, tuple(range(chance.choice([1, 1, 2]))))
        for place in chance.sample(range(len(first)), chance.randint(0, len(first)))
    }
    in_lockstep = LockstepShares(first, further, grown)
    scheduled = MixedShares(in_lockstep, tuple(apart)) if apart else in_lockstep
    if not len(scheduled):
        return
    got, plain = share_columns(scheduled, rows), tuple(scheduled)
    for mine, theirs in zip(got, share_columns(plain, others), strict=True):
        assert mine.dtype == theirs.dtype == np.int64
        assert mine.tolist() == theirs.tolist()
    assert got.token_ids.tolist() == [token_id for share in plain for token_id in share.token_ids]
    assert got.starts.tolist() == [share.num_computed_tokens for share in plain]
    assert got.query_lens.tolist() == [len(share.token_ids) for share in plain]
    assert got.num_samples.tolist() == [len(share.samples) for share in plain]
    assert got.seeds.tolist() == [sample.seed for share in plain for sample in share.samples]
    assert got.rows.tolist() == [rows.update(share) for share in plain]
    assert np.array_equal(rows.block_table, others.block_table)
