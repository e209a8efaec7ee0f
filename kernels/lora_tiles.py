"""How the kernels of adapters cut a batch: into tiles, each of tokens that have one adapter.

So a program reads one adapter's weights, and its tokens may stand anywhere in the batch (Punica's SGMV, Chen et al.
2023). Tiles are made on the host, where a batch is made, and there are as many of them as any batch of so many tokens
could need: a CUDA graph holds for all. Programs of a tile that is not used end at once, before the kernel that the
others wait for. Those of the first tile wait in any case: a kernel whose programs have all ended without would let the
next one begin too early.

A token's result depends on its own values and adapter, and on the size of a tile, which follows from the number of
tokens: which tile it is in, and beside whom, decides who computes it, not how.
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
"""Ranks that are multiplied at once: the least that a product on matrix units takes."""

FEW_TOKENS, MANY_TOKENS = 16, 64
"""A tile's."""

_MOST_FEW_TOKENS = 256
_MOST_TOKENS = 2**18
_LOAD_BYTES = 16

IntArray = npt.NDArray[np.signedinteger[Any]]


def has_few_tokens(num_tokens: int) -> bool:
    """As a decode step has; what has more is mostly prompts, many tokens of one adapter."""
    return num_tokens <= _MOST_FEW_TOKENS


def tile_size(num_tokens: int) -> int:
    return FEW_TOKENS if has_few_tokens(num_tokens) else MANY_TOKENS


def most_tiles(num_tokens: int, num_adapters: int) -> int:
    """That a batch of so many tokens can need."""
    return min(num_tokens, -(-num_tokens // tile_size(num_tokens)) + num_adapters)


def token_tiles(slots: IntArray, num_tiles: int) -> npt.NDArray[np.int32]:
    """[num_tiles, 1 + tile_size] int32: a tile's slot, -1 if it is not used, and its tokens, -1 where there is none.

    slots [T]: of the tokens, 0 where they have no adapter. num_tiles: enough, as `most_tiles` says. Tiles are sorted by
    their slots, those that are not used come last.
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
    """For batches of any size that there is."""
    return torch.zeros(MAX_PARTS * most_tiles(_MOST_TOKENS, num_adapters), dtype=torch.int32, device=device)


def tiles_of(token_slots: TokenSlots) -> Tensor:
    """AssertionError unless they are there, as the number of tokens asks for."""
    tiles = token_slots.tiles
    assert tiles is not None and tiles.is_contiguous()
    assert tiles.shape[1] == 1 + tile_size(token_slots.slots.shape[0])
    return tiles


def known_alignment(tables: LoraTables) -> int:
    """Of the pool's offsets, in elements, as far as a load has use for it."""
    return gcd(tables.alignment, _LOAD_BYTES // tables.pool.itemsize)


@triton.jit
@no_type_check
def tile_tokens(tiles_ptr, tile, BLOCK_TOKENS: tl.constexpr):
    """(slot, tokens [BLOCK_TOKENS]), int64. May be read before the wait for inputs: tiles come by a copy."""
    tile_ptr = tiles_ptr + tile * (1 + BLOCK_TOKENS)
    slot, token = tl.load(tile_ptr), tl.load(tile_ptr + 1 + tl.arange(0, BLOCK_TOKENS))
    return slot.to(tl.int64), token.to(tl.int64)
