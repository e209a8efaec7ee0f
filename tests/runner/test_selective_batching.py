"""The flat batch against a slow reading of the same plan, for random plans."""

from __future__ import annotations

import random

import numpy as np
import pytest

from service.core.iteration_plan import Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.sequence_rows import SequenceRows
from tests.runner.plans import flat


def random_share(chance, sequence_id, block_size, free):
    count = 1 if chance.random() < 0.5 else chance.randint(2, 40)
    computed = chance.randint(0, 60)
    blocks = tuple(free.pop() for _ in range(-(-(computed + count) // block_size)))
    return ScheduledSequence(
        sequence_id=sequence_id,
        row=sequence_id + 1,
        token_ids=tuple(chance.randrange(1000) for _ in range(count)),
        num_computed_tokens=computed,
        table_start=0,
        block_ids=blocks,
        sampling=SamplingParams(max_tokens=1, temperature=chance.random(), top_p=chance.random(), top_k=sequence_id),
        samples=tuple(Sample(sequence_id, chance.randrange(2**62)) for _ in range(chance.randint(0, 3))),
    )


@pytest.mark.parametrize("seed", range(30))
def test_a_batch_says_what_its_plan_says(seed):
    chance = random.Random(seed)
    block_size = chance.choice([1, 4, 16])
    free = chance.sample(range(5000), 3000)
    scheduled = [random_share(chance, i, block_size, free) for i in range(chance.randint(1, 12))]
    batch = flat(scheduled, SequenceRows(4, 200), block_size)

    # Who stands where: sequences are told apart by their blocks, which are all distinct.
    by_block = {share.block_ids[0]: share for share in scheduled}
    in_order = [by_block[int(row[0])] for row in batch.block_table]
    assert sorted(s.sequence_id for s in in_order) == [s.sequence_id for s in scheduled]

    decodes = [len(s.token_ids) == 1 for s in in_order]
    assert decodes == sorted(decodes, reverse=True)
    assert batch.num_decode == sum(decodes)
    context_lens = [s.num_computed_tokens + len(s.token_ids) for s in in_order]
    assert batch.sequences["context_lens"].tolist() == context_lens
    assert context_lens[: batch.num_decode] == sorted(context_lens[: batch.num_decode], reverse=True)

    tokens, positions, slots, starts, last = [], [], [], [0], {}
    for share in in_order:
        for i, token in enumerate(share.token_ids):
            position = share.num_computed_tokens + i
            tokens.append(token)
            positions.append(position)
            slots.append(share.block_ids[position // block_size] * block_size + position % block_size)
        starts.append(len(tokens))
        last[share.sequence_id] = len(tokens) - 1
    assert batch.tokens["token_ids"].tolist() == tokens
    assert batch.tokens["positions"].tolist() == positions
    assert batch.tokens["slot_mapping"].tolist() == slots
    assert batch.query_starts.tolist() == starts
    for row, share in zip(batch.block_table, in_order, strict=True):
        assert tuple(row[: len(share.block_ids)]) == share.block_ids

    sampled = [s for s in scheduled if s.samples]
    assert batch.logit_rows.tolist() == [last[s.sequence_id] for s in sampled]
    assert [in_order[place].sequence_id for place in batch.logit_places] == [s.sequence_id for s in sampled]
    assert batch.logit_lens.tolist() == [s.num_computed_tokens + len(s.token_ids) for s in sampled]
    assert batch.samples_per_row.tolist() == [len(s.samples) for s in sampled]
    draws = [(s, d) for s in scheduled for d in s.samples]
    assert batch.draws["seeds"].tolist() == [d.seed for _, d in draws]
    assert batch.draws["sample_positions"].tolist() == [s.num_computed_tokens + len(s.token_ids) for s, _ in draws]
    assert batch.draws["top_k"].tolist() == [s.sequence_id for s, _ in draws]
    np.testing.assert_allclose(batch.draws["temperature"], [s.sampling.temperature for s, _ in draws], rtol=1e-6)
    np.testing.assert_allclose(batch.draws["top_p"], [s.sampling.top_p for s, _ in draws], rtol=1e-6)


def test_dtypes_are_those_that_the_kernels_take():
    share = ScheduledSequence(0, 1, (1, 2), 0, 0, (3,), SamplingParams(max_tokens=1), (Sample(0, -1),))
    batch = flat([share], SequenceRows(1, 4), 16)
    for name in (
        "token_ids",
        "positions",
        "slot_mapping",
        "logit_rows",
        "draw_rows",
        "seeds",
        "sample_positions",
    ):
        assert batch.arrays()[name].dtype == np.int64, name
    for name in ("context_lens", "query_starts", "block_table", "top_k"):
        assert batch.arrays()[name].dtype == np.int32, name
    assert batch.draws["temperature"].dtype == batch.draws["top_p"].dtype == np.float32
    assert batch.draws["seeds"].tolist() == [-1]
