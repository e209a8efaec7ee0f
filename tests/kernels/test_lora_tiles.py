from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.lora_tiles import FEW_TOKENS, MANY_TOKENS, known_alignment, most_tiles, tile_size, tiles_of, token_tiles
from tests.kernels.lora_case import LoraCase, token_slots

_NUM_ADAPTERS = 9


@given(st.lists(st.integers(0, _NUM_ADAPTERS), max_size=64), st.integers(1, 7))
def test_each_token_is_in_one_tile_of_its_slot(some, times):
    slots = np.array(some * times, np.int32)
    tiles = token_tiles(slots, most_tiles(len(slots), _NUM_ADAPTERS))
    assert tiles.dtype == np.int32 and tiles.shape[1] == 1 + tile_size(len(slots))
    places = [(slot, token) for slot, *tokens in tiles.tolist() for token in tokens if token >= 0]
    assert sorted(places) == sorted((slot, token) for token, slot in enumerate(slots.tolist()))
    used = tiles[:, 0] >= 0
    assert (tiles[~used, 1:] == -1).all() and (tiles[used, 1] >= 0).all()
    assert not used[np.count_nonzero(used) :].any() and (np.diff(tiles[used, 0]) >= 0).all()


@pytest.mark.parametrize(
    ("num_tokens", "num_adapters", "size", "most"),
    [
        (0, 64, FEW_TOKENS, 0),
        (1, 64, FEW_TOKENS, 1),
        (64, 64, FEW_TOKENS, 64),
        (65, 2, FEW_TOKENS, 7),
        (256, 64, FEW_TOKENS, 80),
        (257, 64, MANY_TOKENS, 69),
        (8192, 1, MANY_TOKENS, 129),
    ],
)
def test_as_many_tiles_as_any_batch_may_need(num_tokens, num_adapters, size, most):
    assert (tile_size(num_tokens), most_tiles(num_tokens, num_adapters)) == (size, most)


def test_tiles_of_another_size_are_refused():
    few, many = token_slots([1] * 256), token_slots([1] * 257)
    assert tiles_of(few) is few.tiles
    for wrong in (None, many.tiles):
        with pytest.raises(AssertionError):
            tiles_of(replace(few, tiles=wrong))


@pytest.mark.parametrize(
    ("dtype", "told", "known"),
    [
        (torch.bfloat16, 1, 1),
        (torch.bfloat16, 8, 8),
        (torch.bfloat16, 12, 4),
        (torch.bfloat16, 4096, 8),
        (torch.float32, 64, 4),
        (torch.float32, 6, 2),
    ],
)
def test_alignment_is_told_up_to_what_one_load_takes(dtype, told, known):
    case = LoraCase(8, (4,), 2, dtype)
    case.add(1, 2)
    assert known_alignment(replace(case.tables(2), alignment=told)) == known
