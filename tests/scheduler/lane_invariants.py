"""The laws of lanes and of their decode batches."""

from __future__ import annotations

from collections.abc import Iterable

from service.core.sequence_group import SequenceGroup
from service.scheduler.decode_batch import END, LAST, NUM_NEW, ROOM, ROW, SEQUENCE_ID, DecodeBatch
from service.scheduler.lanes import Lanes


def check_lanes(lanes: Lanes, running: list[SequenceGroup]) -> None:
    """Every running group is in exactly one lane, and every batch is consistent."""
    held = [[group for group in running if batch.holds(group)] for batch in lanes]
    assert sum(map(len, held)) == len(running), "every group is in one lane"
    for batch, of_lane in zip(lanes, held, strict=True):
        check_batch(batch, of_lane)


def check_batch(batch: DecodeBatch, running: Iterable[SequenceGroup]) -> None:
    """Each group is in exactly one place, and the columns agree with its block table."""
    assert sorted([*batch._numbers, *batch.unbatched]) == sorted(group.arrival_order for group in running)
    assert len(batch._tables) == len(batch._numbers)
    batch._drop_left()
    batch.write_tokens()
    assert [group.arrival_order for group in batch._members.groups] == list(batch._numbers)
    for group, column in zip(batch._members.groups, batch._columns.T.tolist(), strict=True):
        (sequence,) = group.live
        table = batch._tables[sequence.sequence_id]
        assert table is batch._blocks.table(sequence.sequence_id)
        assert (column[SEQUENCE_ID], column[ROW]) == (sequence.sequence_id, table.row)
        num_computed = column[END] - column[NUM_NEW]
        assert column[ROOM] == batch._blocks.num_tokens_in(len(table.block_ids))
        assert num_computed <= column[ROOM]
        assert num_computed < column[LAST] == sequence.max_num_tokens - 1
        assert len(sequence.token_ids) <= num_computed + 1
