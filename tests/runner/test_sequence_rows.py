from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from service.core.sampling_params import SamplingParams
from service.core.scheduled_sequence import ScheduledSequence
from service.runner.batch_columns import Per
from service.runner.graph_inputs import GraphInputs
from service.runner.graph_sizes import GraphSize
from service.runner.sequence_rows import NO_CHANGES, DeviceBlockTable, SequenceRows
from tests.runner.plans import flat, planned


def params(**sampling):
    return SamplingParams(max_tokens=1, **sampling)


def in_row(row, sampling):
    return ScheduledSequence(row, row, (5,), 0, 0, (0,), sampling, ())


def write(rows, row, block_ids, start=0):
    indexes = np.arange(start, start + len(block_ids))
    rows.write_blocks(np.full(len(block_ids), row), indexes, np.array(block_ids, np.int64))


def changes(rows, num_rows):
    return dict(zip(*(part.tolist() for part in rows.take_changes(num_rows)), strict=True))


def test_a_row_keeps_what_does_not_change_and_takes_what_grows():
    rows = SequenceRows(4, 8)
    rows.remember([in_row(2, params(temperature=0.5, top_p=0.9, top_k=3))])
    write(rows, 2, (5, 6))
    write(rows, 2, (9,), 2)
    assert rows.block_table[2, :3].tolist() == [5, 6, 9]
    assert (rows["temperature"][2], rows["top_k"][2]) == (0.5, 3)
    assert rows["top_p"][2] == pytest.approx(0.9)
    write(rows, 2, (4, 9), 1)  # copy-on-write replaces a block and repeats those behind it
    assert rows.block_table[2, :3].tolist() == [5, 4, 9]


def test_a_row_serves_another_sequence_with_parameters_of_its_own():
    rows = SequenceRows(1, 8)
    rows.remember([in_row(1, params(temperature=0.5, min_p=0.1, num_logprobs=3))])
    assert rows["asks_more"][1]
    rows.remember([in_row(1, params(temperature=0.0))])
    assert (rows["temperature"][1], rows["min_p"][1], rows["num_logprobs"][1]) == (0, 0, -1)
    assert not rows["asks_more"][1]


def test_grows_when_more_come_than_were_planned():
    rows = SequenceRows(2, 8)
    for row in (1, 2, 3, 9, 40):
        rows.reserve(row)
        rows.remember([in_row(row, params(top_k=row))])
        write(rows, row, (row,))
    taken = [1, 2, 3, 9, 40]
    assert rows.block_table[taken, 0].tolist() == rows["top_k"][taken].tolist() == taken
    assert rows["top_p"][39] == 1, "the padding of its column"


def test_top_k_beyond_int32_keeps_all():
    rows = SequenceRows(1, 1)
    rows.remember([in_row(1, params(top_k=2**40))])
    assert rows["top_k"][1] == 2**31 - 1


def test_what_is_gathered_is_what_was_remembered():
    rows = SequenceRows(9, 8)
    chance = random.Random(0)
    every = [params(temperature=chance.random(), top_k=i, min_p=chance.random()) for i in range(9)]
    rows.remember([in_row(row, each) for row, each in enumerate(every, 1)])
    at = np.array([chance.randrange(9) for _ in range(20)])
    got = rows.gather(Per.DRAW, at + 1) | rows.gather(Per.ASKING_DRAW, at + 1)
    for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty"):
        assert got[name].tolist() == pytest.approx([getattr(every[i], name) for i in at], rel=1e-6)


def test_a_copy_that_takes_the_changes_stays_equal():
    chance = random.Random(0)
    rows = SequenceRows(3, 12)
    copy = np.zeros(4 * 12, dtype=np.int32)
    for step in range(300):
        start = chance.randint(0, 11)
        write(rows, chance.randint(1, 3), [chance.randrange(1000) for _ in range(chance.randint(0, 12 - start))], start)
        if step % 3 == 0:
            places, values = rows.take_changes(4)
            assert len(set(zip(places.tolist(), values.tolist(), strict=True))) == len(set(places.tolist()))
            copy[places] = values
            assert (copy == rows.block_table.reshape(-1)).all()
    rows.take_changes(4)
    assert [len(part) for part in rows.take_changes(4)] == [0, 0]


def test_changes_of_rows_that_the_copy_lacks_are_left_out():
    rows = SequenceRows(2, 8)
    rows.reserve(5)
    for row in range(1, 6):
        write(rows, row, (10 * row,))
    places, values = rows.take_changes(3)
    assert sorted(values.tolist()) == [10, 20]
    assert (places < 3 * 8).all()


def test_changes_that_nobody_takes_are_few():
    """However long it takes: more than the whole table are not noted."""
    rows = SequenceRows(3, 12)
    copy = np.zeros(4 * 12, dtype=np.int32)
    for step in range(60):
        write(rows, 1, (step, step + 1))
        if step == 40:
            places, values = rows.take_changes(4)
            assert sorted(places.tolist()) == [*range(4 * 12)]
            copy[places] = values
    places, values = rows.take_changes(4)
    copy[places] = values
    assert (copy == rows.block_table.reshape(-1)).all()


def test_what_a_copy_has_missed_is_noted_again():
    rows = SequenceRows(3, 12)
    write(rows, 1, (5, 6))
    rows.take_changes(4)
    rows.note_all()
    write(rows, 2, (7,))
    places, values = rows.take_changes(4)
    assert places.tolist() == [*range(4 * 12)]
    assert values.tolist() == rows.block_table.reshape(-1).tolist()


def test_rows_that_grow_together_grow_as_each_by_itself():
    chance = random.Random(0)
    together, one_by_one = SequenceRows(9, 40), SequenceRows(9, 40)
    for step in range(20):
        grown = [(row, step, chance.randrange(99)) for row in chance.sample(range(1, 10), chance.randint(1, 9))]
        together.write_blocks(*np.array(grown).T)
        for row, index, block_id in grown:
            write(one_by_one, row, (block_id,), index)
        assert np.array_equal(together.block_table, one_by_one.block_table)
        assert changes(together, 10) == changes(one_by_one, 10)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def item(sequence_id, block_ids, start=0):
    params = SamplingParams(max_tokens=1)
    return ScheduledSequence(sequence_id, sequence_id + 1, (0,), 0, start, tuple(block_ids), params, ())


NO_PROMPT = flat([item(0, ())], SequenceRows(1, 6), 4)
CHANGES = ([item(0, (4, 5)), item(1, (9,))], [], [item(0, (7,), 2), item(1, (8, 3), 0)], [item(2, (1,))])


@pytest.mark.parametrize("device", DEVICES)
def test_follows_the_rows_at_once_where_there_is_no_room_for_changes(device):
    rows = SequenceRows(3, 6)
    table = DeviceBlockTable(rows, torch.device(device))
    address = table.tensor.data_ptr()
    for changes in CHANGES:
        if changes:
            planned(changes, rows)
        assert table.take_changes(0) is NO_CHANGES or not changes
        assert table.tensor.tolist() == rows.block_table.tolist()
    assert table.tensor.data_ptr() == address


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_mixed", [False, True], ids=["decodes", "mixed"])
def test_follows_the_rows_by_what_comes_with_a_step(is_mixed, device):
    """Whatever an earlier step wrote is padding in the next one."""
    rows = SequenceRows(3, 6)
    table = DeviceBlockTable(rows, torch.device(device))
    inputs = (
        GraphInputs(GraphSize(6, 1), table.tensor, 4) if is_mixed else GraphInputs(GraphSize(6, 6), table.tensor, 4)
    )
    for changes in CHANGES:
        before = rows.block_table.tolist()
        if changes:
            planned(changes, rows)
        taken = table.take_changes(inputs.most_changes)
        assert table.tensor.tolist() == before
        if is_mixed:
            inputs.fill(NO_PROMPT, taken)
        else:
            inputs.fill_decodes({}, taken)
        inputs.fetch()
        table.write(inputs.table_places, inputs.table_values)
        assert table.tensor.tolist() == rows.block_table.tolist()


def test_rows_that_were_added_are_missing():
    rows = SequenceRows(1, 6)
    table = DeviceBlockTable(rows, torch.device("cpu"))
    assert table.is_complete
    for i in range(3):
        planned([item(i, (i + 1,))], rows)
    table.take_changes(0)
    assert not table.is_complete


def test_its_bytes_are_known_before():
    rows = SequenceRows(6, 12)
    table = DeviceBlockTable(rows, torch.device("cpu")).tensor
    assert DeviceBlockTable.num_bytes(rows.num_rows, 12) == table.nbytes
