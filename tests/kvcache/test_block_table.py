from __future__ import annotations

from service.kvcache.block_table import HOLE, BlockTable, num_holes


def test_changes_are_told_once_from_the_first_entry_that_changed():
    table = BlockTable(1, [7, 8])
    assert table.take_changes() == (0, (7, 8))
    assert table.take_changes() == (2, ())
    table.append(9)
    assert table.take_changes() == (2, (9,))
    table.append(10)
    table.replace(1, 11)
    assert table.take_changes() == (1, (11, 9, 10))
    assert table.take_changes() == (4, ())


def test_blocks_that_go_leave_holes_which_are_told_as_any_block():
    table = BlockTable(1, [7, 8, 9, 10])
    assert table.drop_before(2) == [7, 8]
    assert table.drop_before(1) == []
    assert (table.held, table.first) == ([9, 10], 2)
    assert table.take_changes() == (0, (0, 0, 9, 10))
    assert table.drop_before(3) == [9]
    assert table.take_changes() == (4, ()), "nobody reads what has gone"
    table.append(11)
    assert table.take_changes() == (4, (11,))
    table.adopt([HOLE, 5], 3)
    assert (table.held, table.first) == ([5], 4)
    assert table.drop_before(9) == [5] and table.held == []


def test_holes_are_counted_from_the_start():
    assert [num_holes(ids) for ids in ([], [3], [HOLE], [HOLE, HOLE, 4, 5])] == [0, 0, 1, 2]
