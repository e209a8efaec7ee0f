from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from service.core.iteration_plan import IterationPlan, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.plan_columns import plan_columns
from service.runner.sequence_rows import SequenceRows
from tests.runner.plans import as_decodes, planned


def random_item(chance, row, num_tokens, num_samples):
    computed = chance.randint(1, 40)
    return ScheduledSequence(
        100 + row,
        row,
        tuple(chance.randrange(1000) for _ in range(num_tokens)),
        computed,
        0,
        tuple(chance.randrange(1000) for _ in range((computed + num_tokens) // 4 + 1)),
        SamplingParams(max_tokens=9, temperature=row / 7),
        tuple(Sample(row + 100 * i, chance.randrange(2**62)) for i in range(num_samples)),
    )


def one_further(chance, item):
    """Its next token, pending; perhaps with one more block, or two."""
    start, num_blocks = item.num_computed_tokens + 1, len(item.block_ids)
    new = tuple(chance.randrange(1000) for _ in range(chance.choice([0, 0, 1, 2])))
    return item._replace(token_ids=(-2,), num_computed_tokens=start, table_start=num_blocks, block_ids=new)


@pytest.mark.parametrize("seed", range(20))
def test_columns_say_what_the_plan_says(seed):
    """Decodes first, whether they are columns already or not, and the block tables are those."""
    chance = random.Random(seed)
    first = [random_item(chance, 1 + i, 1, 1) for i in range(chance.randint(0, 12))]
    others = [random_item(chance, 50 + i, chance.randint(1, 9), chance.randint(0, 3)) for i in range(4)]
    rows, twins = SequenceRows(8, 40), SequenceRows(80, 40)  # one of them grows
    if first:
        planned(first, rows)
        planned(first, twins)
    now = [one_further(chance, item) for item in first]
    plan = IterationPlan(tuple(others), decodes=as_decodes(now, 1)) if now else IterationPlan(tuple(others))
    got, every = plan_columns(plan, rows), [*now, *others]
    for mine, theirs in zip(got, planned(every, twins), strict=True):
        assert mine.dtype == theirs.dtype == np.int64
        assert mine.tolist() == theirs.tolist()
    assert got.rows.tolist() == [item.row for item in every]
    assert got.token_ids.tolist() == [token_id for item in every for token_id in item.token_ids]
    assert got.num_computed_tokens.tolist() == [item.num_computed_tokens for item in every]
    assert got.query_lens.tolist() == [len(item.token_ids) for item in every]
    assert got.num_samples.tolist() == [len(item.samples) for item in every]
    assert got.seeds.tolist() == [sample.seed for item in every for sample in item.samples]
    for item in every:
        blocks = rows.block_table[item.row, item.table_start : item.table_start + len(item.block_ids)]
        assert blocks.tolist() == list(item.block_ids)
        assert rows["temperature"][item.row] == np.float32(item.sampling.temperature)
    assert np.array_equal(rows.block_table[:60], twins.block_table[:60])


def test_several_tokens_of_a_decode_are_all_pending():
    rows = SequenceRows(4, 8)
    prompt = ScheduledSequence(7, 2, (5, 6), 0, 0, (1, 2, 3), SamplingParams(max_tokens=9), (Sample(7, 0),))
    planned([prompt], rows)
    decodes = as_decodes([prompt._replace(token_ids=(-2, -2, -2), num_computed_tokens=2, block_ids=())], 1)
    got = plan_columns(IterationPlan((), decodes=decodes), rows)
    assert (got.token_ids.tolist(), got.query_lens.tolist()) == ([-2, -2, -2], [3])
    assert not got.is_decode


def test_a_row_is_another_sequences_once_it_is_scheduled_with_a_whole_table():
    rows = SequenceRows(4, 8)
    item = ScheduledSequence(7, 2, (5,), 0, 0, (1,), SamplingParams(max_tokens=9, top_k=3), ())
    planned([item], rows)
    other = SamplingParams(max_tokens=9, top_k=5)
    planned([item._replace(num_computed_tokens=1, table_start=1, block_ids=(2,), sampling=other)], rows)
    assert rows["top_k"][2] == 3
    planned([item._replace(sequence_id=8, sampling=other)], rows)
    assert rows["top_k"][2] == 5


@pytest.mark.parametrize("seed", range(20))
def test_the_parts_of_a_plan_are_the_whole(seed):
    """Every token is there once, at its position, wherever sequences are cut."""
    chance = random.Random(seed)
    items = [random_item(chance, 1 + i, chance.randint(1, 9), 1) for i in range(chance.randint(1, 6))]
    whole = planned(items, SequenceRows(8, 20))
    num = len(whole.token_ids)
    cuts = [0, *sorted(chance.sample(range(1, num), min(num - 1, chance.randint(0, 5)))), num]
    tokens = []
    for first, stop in pairwise(cuts):
        part = whole.part(first, stop)
        assert part.query_lens.sum() == stop - first == len(part.token_ids)
        assert not part.num_samples.any() and not len(part.seeds)
        ids = iter(part.token_ids.tolist())
        for row, computed, length in zip(part.rows, part.num_computed_tokens, part.query_lens, strict=True):
            assert length > 0
            tokens += [(row, computed + i, next(ids)) for i in range(length)]
    assert tokens == [
        (item.row, item.num_computed_tokens + i, token_id)
        for item in items
        for i, token_id in enumerate(item.token_ids)
    ]


def test_what_is_a_decode():
    item = ScheduledSequence(7, 1, (5,), 0, 0, (1,), SamplingParams(max_tokens=9), (Sample(7, 0),))
    rows = SequenceRows(4, 8)
    for others, expected in [
        ((), True),
        ((item._replace(sequence_id=8, row=2, num_computed_tokens=9),), True),
        ((item._replace(sequence_id=8, row=2, token_ids=(5, 6)),), False),
        ((item._replace(sequence_id=8, row=2, samples=()),), False),
        ((item._replace(sequence_id=8, row=2, samples=(Sample(8, 0), Sample(9, 0))),), False),
    ]:
        assert planned([item, *others], rows).is_decode == expected
