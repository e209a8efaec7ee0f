from __future__ import annotations

import random

import numpy as np
import pytest

from service.core.iteration_plan import ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.sequence_rows import SequenceRows


def share(sequence_id, block_ids=(), table_start=0, **sampling):
    params = SamplingParams(max_tokens=1, **sampling)
    return ScheduledSequence(sequence_id, (0,), 0, table_start, tuple(block_ids), params, ())


def changes(rows, num_rows):
    return dict(zip(*(part.tolist() for part in rows.take_changes(num_rows)), strict=True))


def test_a_row_keeps_what_does_not_change_and_takes_what_grows():
    rows = SequenceRows(4, 8)
    row = rows.update(share(7, (5, 6), temperature=0.5, top_p=0.9, top_k=3))
    assert rows.update(share(7, (9,), table_start=2)) == row
    assert rows.update(share(7)) == row
    assert rows.block_table[row, :3].tolist() == [5, 6, 9]
    assert (rows.temperature[row], rows.top_k[row]) == (0.5, 3)
    assert rows.top_p[row] == pytest.approx(0.9)


def test_entries_in_the_middle_may_change():
    """Copy-on-write replaces a block and repeats those behind it."""
    rows = SequenceRows(4, 8)
    row = rows.update(share(7, (5, 6, 8)))
    rows.update(share(7, (4, 8), table_start=1))
    assert rows.block_table[row, :3].tolist() == [5, 4, 8]


def test_a_released_row_serves_another_and_the_id_may_return():
    rows = SequenceRows(1, 8)
    row = rows.update(share(1, (5,), temperature=0.5))
    rows.release(1)
    assert rows.update(share(2, (6,), temperature=0.0)) == row
    assert (rows.block_table[row, 0], rows.temperature[row]) == (6, 0.0)
    rows.release(2)
    rows.update(share(1, (7,)))
    assert rows.block_table[row, 0] == 7


def test_releasing_twice_or_something_unknown_is_fine():
    rows = SequenceRows(2, 8)
    rows.update(share(1, (5,)))
    rows.release(1)
    rows.release(1)
    rows.release(99)
    assert len({rows.update(share(i, (i,))) for i in (1, 2)}) == 2
    assert len(rows) == 2


def test_grows_when_more_are_alive():
    rows = SequenceRows(2, 8)
    taken = [rows.update(share(i, (i,), top_k=i)) for i in range(9)]
    assert len(set(taken)) == 9
    assert rows.block_table[taken, 0].tolist() == list(range(9))
    assert rows.top_k[taken].tolist() == list(range(9))


def test_top_k_beyond_int32_keeps_all():
    rows = SequenceRows(1, 1)
    row = rows.update(share(1, top_k=2**40))
    assert rows.top_k[row] == 2**31 - 1


def test_a_newcomer_brings_its_whole_table():
    with pytest.raises(AssertionError, match="whole block table"):
        SequenceRows(1, 8).update(share(1, (5,), table_start=1))


def test_a_copy_that_takes_the_changes_stays_equal():
    chance = random.Random(0)
    rows = SequenceRows(3, 12)
    copy = np.zeros(4 * 12, dtype=np.int32)
    lengths: dict[int, int] = {}
    for step in range(300):
        sequence_id = chance.randrange(6)
        if sequence_id in lengths and chance.random() < 0.2:
            rows.release(sequence_id)
            del lengths[sequence_id]
        elif sequence_id in lengths or len(lengths) < 3:
            start = chance.randint(0, lengths.get(sequence_id, 0))
            block_ids = [chance.randrange(1, 1000) for _ in range(chance.randint(0, 12 - start))]
            rows.update(share(sequence_id, block_ids, start))
            lengths[sequence_id] = start + len(block_ids)
        if step % 3 == 0:
            places, values = rows.take_changes(4)
            assert len(set(zip(places.tolist(), values.tolist(), strict=True))) == len(set(places.tolist()))
            copy[places] = values
            assert (copy == rows.block_table.reshape(-1)).all()
    rows.take_changes(4)
    assert [len(part) for part in rows.take_changes(4)] == [0, 0]


def test_changes_of_rows_that_the_copy_lacks_are_left_out():
    rows = SequenceRows(2, 8)
    taken = [rows.update(share(i, (i + 1,))) for i in range(4)]
    places, values = rows.take_changes(3)
    assert sorted(values.tolist()) == [i + 1 for i in range(4) if taken[i] < 3] != []
    assert (places < 3 * 8).all()


def test_changes_that_nobody_takes_are_few():
    """However long it takes: more than the whole table are not noted."""
    rows = SequenceRows(3, 12)
    copy = np.zeros(4 * 12, dtype=np.int32)
    for step in range(60):
        rows.update(share(0, (step, step + 1)))
        if step == 40:
            places, values = rows.take_changes(4)
            assert sorted(places.tolist()) == [*range(4 * 12)]
            copy[places] = values
    places, values = rows.take_changes(4)
    copy[places] = values
    assert (copy == rows.block_table.reshape(-1)).all()


def test_what_a_copy_has_missed_is_noted_again():
    rows = SequenceRows(3, 12)
    rows.update(share(0, (5, 6)))
    rows.take_changes(4)
    rows.note_all()
    rows.update(share(1, (7,)))
    places, values = rows.take_changes(4)
    assert places.tolist() == [*range(4 * 12)]
    assert values.tolist() == rows.block_table.reshape(-1).tolist()


@pytest.mark.parametrize("num_blocks", [(1,), (1, 1, 2, 0)])
def test_rows_that_grow_together_grow_as_each_by_itself(num_blocks):
    chance = random.Random(0)
    together, apart = SequenceRows(9, 40), SequenceRows(9, 40)
    taken = together.update_all([share(i, (i,)) for i in range(9)])
    assert apart.update_all([share(i, (i,)) for i in range(9)]).tolist() == taken.tolist()
    for step in range(1, 20):
        places = chance.sample(range(9), chance.randint(0, 9))
        grown = {p: (step, [chance.randrange(99) for _ in range(chance.choice(num_blocks))]) for p in places}
        together.grow_each(taken, grown)
        for place, (start, block_ids) in grown.items():
            apart.grow(int(taken[place]), start, block_ids)
        assert np.array_equal(together.block_table, apart.block_table)
        assert changes(together, 10) == changes(apart, 10)


def test_nobody_gets_the_row_of_padding():
    rows = SequenceRows(2, 8)
    assert 0 not in [rows.update(share(i, (i,))) for i in range(7)]


@pytest.mark.parametrize("seed", range(5))
def test_a_whole_plan_at_once_is_each_after_the_other(seed: int):
    chance = random.Random(seed)
    one_by_one, at_once = SequenceRows(3, 20), SequenceRows(3, 20)  # both grow
    lengths: dict[int, int] = {}
    for _ in range(12):
        plan = []
        for sequence_id in chance.sample(range(6), chance.randint(1, 6)):
            length = lengths.get(sequence_id, 0)
            grown = chance.choice([0, 1, 1, 2]) if length else chance.randint(1, 3)
            start = max(0, length - chance.choice([0, 0, 1])) if grown and length else length
            new = [chance.randrange(100) for _ in range(length - start + grown)] if grown else []
            if start + len(new) > 20:
                continue
            plan.append(share(sequence_id, new, start if new else length))
            lengths[sequence_id] = max(length, start + len(new))
        if not plan:
            continue
        expected = [one_by_one.update(item) for item in plan]
        assert at_once.update_all(plan).tolist() == expected
        assert np.array_equal(at_once.block_table, one_by_one.block_table)
        if chance.random() < 0.5:
            assert changes(at_once, 6) == changes(one_by_one, 6)
