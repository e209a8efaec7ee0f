from __future__ import annotations

import random

import numpy as np
import pytest
from service.runner.decode_rows import PADDING, decode_rows, empty_rows, go_on, is_decode, pad_into

from service.core.iteration_plan import PENDING_TOKEN_ID, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.selective_batching import flatten
from service.runner.sequence_rows import SequenceRows
from tests.runner.plan_player import going_on


def share(sequence_id, token_ids=(5,), computed=0, block_ids=(1,), num_samples=1, seed=0, **sampling):
    params = SamplingParams(max_tokens=1, **sampling)
    samples = tuple(Sample(sequence_id, seed + i) for i in range(num_samples))
    return ScheduledSequence(sequence_id, tuple(token_ids), computed, 0, tuple(block_ids), params, samples)


def changes(rows):
    return dict(zip(*(part.tolist() for part in rows.take_changes(rows.num_rows)), strict=True))


def random_decodes(chance, block_size):
    free = chance.sample(range(5000), 3000)
    for i in range(chance.randint(1, 20)):
        computed = chance.randint(0, 100)
        blocks = [free.pop() for _ in range(computed // block_size + 1)]
        sampling = {"temperature": chance.random(), "top_p": chance.random(), "top_k": i}
        yield share(i, (chance.randrange(1000),), computed, blocks, seed=chance.randrange(2**62), **sampling)


@pytest.mark.parametrize("seed", range(20))
def test_the_rows_say_what_the_flat_batch_says(seed):
    """Which is tested against a slow reading of the plan; only the order differs: it puts long contexts first."""
    chance = random.Random(seed)
    block_size = chance.choice([1, 4, 16])
    scheduled = list(random_decodes(chance, block_size))
    rows = SequenceRows(30, 200)
    batch = flatten(scheduled, rows, block_size)
    got = decode_rows(scheduled, rows, block_size)
    order = np.argsort(-got.context_lens, kind="stable")
    assert got.token_ids[order].tolist() == batch.token_ids.tolist()
    assert got.positions[order].tolist() == batch.positions.tolist()
    assert got.slots[order].tolist() == batch.slot_mapping.tolist()
    assert got.context_lens[order].tolist() == batch.context_lens.tolist()
    table = rows.block_table[got.rows[order], : batch.block_table.shape[1]]
    assert (table == batch.block_table).all()
    for name in ("temperature", "top_p", "top_k", "seeds", "sample_positions"):
        assert getattr(got, name).tolist() == getattr(batch, name).tolist()


@pytest.mark.parametrize("seed", range(20))
def test_going_on_gives_the_rows_of_the_next_plan(seed):
    """Whether a block comes when its first token does, or before, with others."""
    chance = random.Random(seed)
    block_size = chance.choice([1, 4, 16])
    first = list(random_decodes(chance, block_size))
    rows, others = SequenceRows(30, 200), SequenceRows(30, 200)
    got = decode_rows(first, rows, block_size)
    decode_rows(first, others, block_size)
    before, unused = first, iter(range(6000, 9000))
    tables = {item.sequence_id: list(item.block_ids) for item in first}
    for _ in range(2 * block_size + 1):
        now = []
        for item in before:
            start = item.num_computed_tokens + 1
            table_start, block_ids = len(tables[item.sequence_id]), ()
            if start // block_size == table_start or chance.random() < 0.05:
                block_ids = tuple(next(unused) for _ in range(chance.choice([1, 1, 3])))
            tables[item.sequence_id] += block_ids
            now.append(
                item._replace(
                    token_ids=(PENDING_TOKEN_ID,),
                    num_computed_tokens=start,
                    table_start=table_start,
                    block_ids=block_ids,
                )
            )
        go_on(got, going_on(before, now), rows, block_size)
        for array, expected in zip(got, decode_rows(now, others, block_size), strict=True):
            assert array.dtype == expected.dtype
            assert array.tolist() == expected.tolist()
        assert changes(rows) == changes(others)
        before = now


def test_what_is_a_decode():
    assert is_decode([share(0), share(1, computed=9)])
    assert not is_decode([share(0), share(1, (5, 6))])
    assert not is_decode([share(0, num_samples=2)])
    assert not is_decode([share(0, num_samples=0)])


def test_padding_follows_the_values():
    values = decode_rows([share(3, (7,), 4, (9, 8)), share(4, (6,), 0, (5,))], SequenceRows(4, 8), 4)
    padded = empty_rows(5)
    for array in padded:
        array.fill(77)
    pad_into(padded, values)
    for got, value, filler in zip(padded, values, PADDING, strict=True):
        assert got.dtype == value.dtype
        assert got.tolist() == [*value.tolist(), *[filler.item()] * 3]
