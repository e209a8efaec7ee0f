from __future__ import annotations

from service.kvcache.block_table import BlockTable


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
