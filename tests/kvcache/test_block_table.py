from __future__ import annotations

from service.core.layer_groups import ALL_SEE_A_WINDOW, ALL_SEE_ALL, TableGroups
from service.kvcache.block_table import HOLE, BlockTable, num_left_behind


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
    table = BlockTable(1, [7, 8, 9, 10], ALL_SEE_A_WINDOW)
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


def test_of_groups_that_see_everything_no_block_goes():
    table = BlockTable(1, [10, 11, 12, 20, 21, 22, 30, 31, 32], TableGroups(1, 2))
    assert table.drop_before(2) == [11, 12, 21, 22]
    assert table.block_ids == [10, HOLE, HOLE, 20, HOLE, HOLE, 30, 31, 32]
    assert (table.held, table.num_held, table.first) == ([10, 20, 30, 31, 32], 5, 2)
    assert table.take_changes() == (0, (10, 0, 0, 20, 0, 0, 30, 31, 32))
    table.adopt([40, HOLE, HOLE], 6)
    assert (table.first, table.num_held) == (3, 3)


def test_units_with_holes_are_counted_from_the_start():
    windowed = ([], [3], [HOLE], [HOLE, HOLE, 4, 5])
    assert [num_left_behind(ids, ALL_SEE_A_WINDOW) for ids in windowed] == [0, 0, 1, 2]
    mixed = ([], [3, 4, 5], [3, HOLE, HOLE], [3, HOLE, HOLE, 4, HOLE, HOLE, 5, 6, 7])
    assert [num_left_behind(ids, TableGroups(1, 2)) for ids in mixed] == [0, 0, 1, 2]
    assert num_left_behind([3, 4], ALL_SEE_ALL) == 0
