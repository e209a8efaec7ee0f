from __future__ import annotations

import pytest
import torch

from kernels.spare_rows import empty_with_spare_rows, with_spare_rows


@pytest.mark.parametrize("num_rows", [1, 17, 64, 100])
def test_rows_that_were_made_with_others_behind_them_are_not_copied(num_rows):
    x = empty_with_spare_rows((num_rows, 3, 8), torch.empty(1, dtype=torch.bfloat16)).flatten(1)
    assert x.shape == (num_rows, 24) and x.dtype is torch.bfloat16 and x.is_contiguous()
    tile = with_spare_rows(x, 64)
    assert tile.data_ptr() == x.data_ptr() and tile.shape == (max(64, num_rows), 24)


@pytest.mark.parametrize("first", [0, 30])
def test_others_are_copied_where_their_storage_ends(first):
    """Strided ones, too: a row of the last part of a packed projection ends with the storage."""
    packed = torch.randn(80, 40)
    x = packed[first : first + 20, 16:]
    tile = with_spare_rows(x, 64)
    assert tile.shape == (64, 24) and torch.equal(tile[:20], x)
    assert (tile.data_ptr() == x.data_ptr()) == (first == 0)
    last = with_spare_rows(packed[16:36, 16:], 64)
    assert last.data_ptr() == packed[16:, 16:].data_ptr(), "64 rows are there to the last number"
