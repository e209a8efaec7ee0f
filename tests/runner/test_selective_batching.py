"""The flat batch against a slow reading of the same plan, for random plans; decodes alone against the flat batch."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from service.core.iteration import IterationPlan
from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import PENDING_TOKEN_ID, Sample, ScheduledSequence
from service.runner.graph_inputs import advance, can_advance
from service.runner.selective_batching import decode_columns, flatten, plan_columns
from service.runner.sequence_rows import SequenceRows
from tests.examples import examples
from tests.runner.plans import as_decodes, flat, planned


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


@pytest.mark.parametrize("seed", range(examples(30)))
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


def decode(row, token_id, computed, block_ids, seed, **sampling):
    params = SamplingParams(max_tokens=1, **sampling)
    return ScheduledSequence(row, row, (token_id,), computed, 0, tuple(block_ids), params, (Sample(row, seed),))


def changes(rows):
    return dict(zip(*(part.tolist() for part in rows.take_changes(rows.num_rows)), strict=True))


def random_decodes(chance, block_size, token_id=None):
    free = chance.sample(range(5000), 3000)
    for row in range(1, chance.randint(2, 21)):
        computed = chance.randint(0, 100)
        blocks = [free.pop() for _ in range(computed // block_size + 1)]
        sampling = {"temperature": chance.random(), "top_p": chance.random(), "top_k": row}
        yield decode(row, token_id or chance.randrange(1000), computed, blocks, chance.randrange(2**62), **sampling)


@pytest.mark.parametrize("seed", range(examples(20)))
def test_the_rows_say_what_the_flat_batch_says(seed):
    """Which is tested against a slow reading of the plan; only the order differs: it puts long contexts first."""
    chance = random.Random(seed)
    block_size = chance.choice([1, 4, 16])
    scheduled = list(random_decodes(chance, block_size))
    rows = SequenceRows(30, 200)
    columns = planned(scheduled, rows)
    batch, got = flatten(columns, rows, block_size), decode_columns(columns, rows, block_size)
    order = np.argsort(-got["decode_context_lens"], kind="stable")
    of_decodes = {f"decode_{name}": column for name, column in batch.sequences.items()}
    for name, column in (batch.tokens | of_decodes).items():
        assert got[name].dtype == column.dtype
        assert got[name][order].tolist() == column.tolist()
    table = rows.block_table[got["decode_rows"][order], : batch.block_table.shape[1]]
    assert (table == batch.block_table).all()
    for name, column in batch.draws.items():
        assert got[name].dtype == column.dtype
        assert got[name].tolist() == column.tolist()


@pytest.mark.parametrize("seed", range(examples(20)))
def test_advancing_gives_the_columns_of_the_next_plan(seed):
    """Whether a block comes when its first token does, or before, with others."""
    chance = random.Random(seed)
    block_size = chance.choice([1, 4, 16])
    first = list(random_decodes(chance, block_size, PENDING_TOKEN_ID))
    rows, others = SequenceRows(30, 200), SequenceRows(30, 200)
    got = {name: column.copy() for name, column in decode_columns(planned(first, rows), rows, block_size).items()}
    planned(first, others)
    before, unused = first, iter(range(6000, 9000))
    tables = {item.row: list(item.block_ids) for item in first}
    for _ in range(2 * block_size + 1):
        now = []
        for item in before:
            start = item.num_computed_tokens + 1
            table_start, block_ids = len(tables[item.row]), ()
            if start // block_size == table_start or chance.random() < 0.05:
                block_ids = tuple(next(unused) for _ in range(chance.choice([1, 1, 3])))
            tables[item.row] += block_ids
            now.append(item._replace(num_computed_tokens=start, table_start=table_start, block_ids=block_ids))
        decodes = as_decodes(now, 1)
        assert can_advance(got, decodes)
        rows.grow_tables(decodes)
        advance(got, rows, block_size)
        for name, expected in decode_columns(planned(now, others), others, block_size).items():
            assert got[name].dtype == expected.dtype
            assert got[name].tolist() == expected.tolist()
        assert changes(rows) == changes(others)
        assert not can_advance(got, decodes)
        before = now


def test_what_is_no_single_token_further_is_not_advanced():
    rows = SequenceRows(4, 8)
    items = [decode(row, PENDING_TOKEN_ID, 4, (1, 2, 3), 0) for row in (1, 2)]
    held = decode_columns(planned(items, rows), rows, 4)
    behind = [item._replace(num_computed_tokens=5) for item in items]
    assert can_advance(held, as_decodes(behind, 1))
    assert not can_advance(held, as_decodes([behind[0], items[1]], 1))
    assert not can_advance(held, as_decodes([behind[0], behind[1]._replace(token_ids=(-2, -2))], 1))


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


@pytest.mark.parametrize("seed", range(examples(20)))
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


@pytest.mark.parametrize("seed", range(examples(20)))
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
