from __future__ import annotations

from typing import no_type_check

import pytest
import torch

from kernels.optional_triton import tl, triton
from kernels.split_kv import find_item, split_items_reference
from tests.kernels.lanes import GPU, INTERPRET

LENGTHS = {
    "one short": [5],
    "one long": [4000],
    "skewed": [4000, 17, 0, 64, 65, 1],
    "many": [(337 * i) % 900 for i in range(20)],
}


@triton.jit
@no_type_check
def _find_all_kernel(
    lens_ptr, found_ptr, num_seqs, splits_wanted, min_tiles, WINDOW: tl.constexpr, SEQS: tl.constexpr, ONE: tl.constexpr
):
    item = tl.program_id(0)
    seq, first_item, split_tiles = find_item(item, lens_ptr, num_seqs, splits_wanted, min_tiles, WINDOW, 64, SEQS, ONE)
    tl.store(found_ptr + 3 * item, seq)
    tl.store(found_ptr + 3 * item + 1, first_item)
    tl.store(found_ptr + 3 * item + 2, split_tiles)


@pytest.mark.parametrize("lens", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("window", [None, 100])
def test_splits_cover_every_tile_once_and_are_about_as_many_as_wanted(lens: list[int], window: int | None):
    items = split_items_reference(lens, 64, splits_wanted=20, min_tiles=2, sliding_window=window)
    split_tiles = items[0][2]
    assert split_tiles >= 2
    assert len(items) <= len(lens) + 20
    for seq, length in enumerate(lens):
        tiles = -(-min(length, window or length) // 64)
        splits = [item for item in items if item[0] == seq]
        assert len(splits) >= 1
        assert (len(splits) - 1) * split_tiles < max(tiles, 1) <= len(splits) * split_tiles
        assert {first for _, first, _ in splits} == {items.index(splits[0])}


@pytest.mark.parametrize("lane", [INTERPRET, GPU])
@pytest.mark.parametrize("block_seqs", [16, 64])
@pytest.mark.parametrize("lens", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("window", [None, 100])
def test_every_program_finds_its_item(lens: list[int], window: int | None, block_seqs: int, lane):
    want = split_items_reference(lens, 64, splits_wanted=20, min_tiles=2, sliding_window=window)
    num_programs = len(want) + 3
    found = lane.put(torch.full((num_programs, 3), -7, dtype=torch.int32))
    context_lens = lane.put(torch.tensor(lens, dtype=torch.int32))
    one_look = len(lens) <= block_seqs
    _find_all_kernel[(num_programs,)](context_lens, found, len(lens), 20, 2, window or 0, block_seqs, one_look)
    assert [tuple(row) for row in found[: len(want)].tolist()] == want
    assert found[len(want) :, 0].tolist() == [len(lens)] * 3, "programs without an item"
