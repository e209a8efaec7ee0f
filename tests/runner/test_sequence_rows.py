from __future__ import annotations

import pytest

from service.core.iteration_plan import ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.runner.sequence_rows import SequenceRows


def share(sequence_id, block_ids=(), table_start=0, **sampling):
    params = SamplingParams(max_tokens=1, **sampling)
    return ScheduledSequence(sequence_id, (0,), 0, table_start, tuple(block_ids), params, ())


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
