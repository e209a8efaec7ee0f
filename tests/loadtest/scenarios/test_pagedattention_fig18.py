import pytest

from loadtest.bench import attention_kernels
from loadtest.scenarios import pagedattention_fig18
from loadtest.scenarios.pagedattention_fig18 import contiguous_table, kernel_table


def test_the_kernels_are_timed_by_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_kernels, "ROTATED_BYTES", 1e4)  # a CPU has no L2 to overflow
    monkeypatch.setattr(pagedattention_fig18, "SEQUENCES", {"some": (2, 24), "others": (3, 9)})
    table = kernel_table((1, 16), prompt_len=20)
    assert [row[0] for row in table.rows] == [1, 16]
    assert table.columns[1:] == ["2 decodes of 24, us", "3 decodes of 9, us", "prompt of 20, us"]
    assert all(cell > 0 for row in table.rows for cell in row[1:])


def test_paged_and_contiguous_are_timed_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_kernels, "ROTATED_BYTES", 1e4)
    (row,) = contiguous_table([(2, 32)]).rows
    assert row[:2] == [2, 32]
    assert row[4] == row[2] / row[3] > 0
