from __future__ import annotations

import random

import numpy as np
import pytest

from service.core.iteration_plan import PENDING_TOKEN_ID, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.decode_batch import advance, can_advance, decode_columns
from service.runner.plan_columns import grow_tables
from service.runner.selective_batching import flatten
from service.runner.sequence_rows import SequenceRows
from tests.runner.plans import as_decodes, planned


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


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_say_what_the_flat_batch_says(seed):
    """Which is tested against a slow reading of the plan; only the order differs: it puts long contexts first."""
    chance = random.Random(seed)
    block_size = chance.choice([1, 4, 16])
    scheduled = list(random_decodes(chance, block_size))
    rows = SequenceRows(30, 200)
    columns = planned(scheduled, rows)
    batch, got = flatten(columns, rows, block_size), decode_columns(columns, rows, block_size)
    order = np.argsort(-got["context_lens"], kind="stable")
    for name, column in (batch.tokens | batch.sequences).items():
        assert got[name].dtype == column.dtype
        assert got[name][order].tolist() == column.tolist()
    table = rows.block_table[got["rows"][order], : batch.block_table.shape[1]]
    assert (table == batch.block_table).all()
    for name, column in batch.draws.items():
        assert got[name].dtype == column.dtype
        assert got[name].tolist() == column.tolist()


@pytest.mark.parametrize("seed", range(20))
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
        grow_tables(decodes, rows)
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
