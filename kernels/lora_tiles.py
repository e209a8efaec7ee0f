"""Cuts a batch into tiles for the kernels of adapters: each tile has tokens of one adapter.

So a program reads only one adapter's weights, and its tokens may be anywhere in the batch (Punica's SGMV, Chen et al.
2023). Tiles are made on the host together with the batch. There are as many as any batch of this many tokens could
need, so one CUDA graph serves them all. Programs of unused tiles end at once, without waiting for the previous kernel.
Programs of the first tile always wait: if all programs ended without waiting, the next kernel could start too early.

A token's result depends on its own values and adapter, and on the tile size, which follows from the number of tokens.
Which tile a token is in, and which tokens share it, decides who computes it, not how.
"""

from __future__ import annotations

from math import gcd
from typing import Any, no_type_check

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.lora_tensors import MAX_PARTS, LoraTables, TokenSlots
from kernels.optional_triton import tl, triton

BLOCK_RANK = 16
"""Ranks multiplied at once: the smallest tile of the tensor cores."""

FEW_TOKENS, MANY_TOKENS = 16, 64
"""Tokens per tile."""

_MOST_FEW_TOKENS = 256
_MOST_TOKENS = 2**18
_LOAD_BYTES = 16

IntArray = npt.NDArray[np.signedinteger[Any]]


def has_few_tokens(num_tokens: int) -> bool:
    """As in a decode step. Larger batches are mostly prompts, with many tokens of one adapter."""
    return num_tokens <= _MOST_FEW_TOKENS


def tile_size(num_tokens: int) -> int:
    return FEW_TOKENS if has_few_tokens(num_tokens) else MANY_TOKENS


def most_tiles(num_tokens: int, num_adapters: int) -> int:
    """The most tiles that a batch of this many tokens can need."""
    return min(num_tokens, -(-num_tokens // tile_size(num_tokens)) + num_adapters)


def token_tiles(slots: IntArray, num_tiles: int) -> npt.NDArray[np.int32]:
    """[num_tiles, 1 + tile_size] int32: a tile's slot (-1 if unused), then its tokens (-1 for none).

    slots [T]: of the tokens, 0 for no adapter. num_tiles: enough by `most_tiles`. Tiles are sorted by slot; unused ones
    come last.
    """
    size = tile_size(len(slots))
    tiles = np.full((num_tiles, 1 + size), -1, np.int32)
    if len(slots):
        tokens = np.argsort(slots, kind="stable")
        of_tokens = slots[tokens]
        starts = np.concatenate(([0], np.diff(of_tokens).nonzero()[0] + 1))
        lens = np.diff(np.append(starts, len(tokens)))
        tiles_of_slots = -(-lens // size)
        behind = np.arange(len(tokens)) - np.repeat(starts, lens)
        tile = np.repeat(np.cumsum(tiles_of_slots) - tiles_of_slots, lens) + behind // size
        tiles[tile, 0] = of_tokens
        tiles[tile, 1 + behind % size] = tokens
    return tiles


def lora_arrivals(num_adapters: int, device: torch.device | str) -> Tensor:
    """Enough for batches of any size."""
    return torch.zeros(MAX_PARTS * most_tiles(_MOST_TOKENS, num_adapters), dtype=torch.int32, device=device)


def tiles_of(token_slots: TokenSlots) -> Tensor:
    """Raises AssertionError unless there are tiles of the size that the number of tokens needs."""
    tiles = token_slots.tiles
    assert tiles is not None and tiles.is_contiguous()
    assert tiles.shape[1] == 1 + tile_size(token_slots.slots.shape[0])
    return tiles


def known_alignment(tables: LoraTables) -> int:
    """Alignment of the pool's offsets in elements, as far as a load can use it."""
    return gcd(tables.alignment, _LOAD_BYTES // tables.pool.itemsize)


@triton.jit
@no_type_check
def tile_tokens(tiles_ptr, tile, BLOCK_TOKENS: tl.constexpr):
    """(slot, tokens [BLOCK_TOKENS]), int64. May be read before the wait for inputs: tiles come by a copy."""
    tile_ptr = tiles_ptr + tile * (1 + BLOCK_TOKENS)
    slot, token = tl.load(tile_ptr), tl.load(tile_ptr + 1 + tl.arange(0, BLOCK_TOKENS))
    return slot.to(tl.int64), token.to(tl.int64)
