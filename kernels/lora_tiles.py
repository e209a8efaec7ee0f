"""How the kernels of adapters cut a batch: into tiles of tokens that are neighbours in the order of slots.

Few of a tile's tokens have different adapters where the batch is large, and all of them may where it is small: a decode
step of 64 users of 64 adapters. So a tile has several programs, its sharers. Each takes every so many'th adapter that
it meets in the tile, multiplies all of the tile's tokens by it and keeps the adapter's own: a product's cost is its
weights' reading, and what another's weights make of a token, be it NaN, goes nowhere.

The cut depends on the numbers of tokens and of slots alone. A token's result depends on its own values and adapter, and
on the size of a tile: the number of sharers, as that of tiles, decides who computes it, not how.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import no_type_check

from kernels.lora_tensors import LoraTables
from kernels.optional_triton import tl, triton

BLOCK_RANK = 16
"""Ranks that are multiplied at once: the least that a product on matrix units takes."""

FEW_TOKENS, MANY_TOKENS = 16, 64
"""A tile's."""

_MOST_FEW_TOKENS = 256
_MOST_SHARERS = 4
_LOAD_BYTES = 16


@dataclass(frozen=True, slots=True)
class LoraTiles:
    """num_programs: of all tiles, tile by tile, num_sharers each."""

    block_tokens: int
    num_sharers: int
    num_programs: int


def lora_tiles(num_tokens: int, tables: LoraTables) -> LoraTiles:
    """num_tokens is at least 1."""
    block_tokens = FEW_TOKENS if has_few_tokens(num_tokens) else MANY_TOKENS
    num_sharers = max(1, min(_MOST_SHARERS, num_tokens, tables.num_slots - 1))
    return LoraTiles(block_tokens, num_sharers, -(-num_tokens // block_tokens) * num_sharers)


def has_few_tokens(num_tokens: int) -> bool:
    """As a decode step has; what has more is mostly prompts, many tokens of one adapter."""
    return num_tokens <= _MOST_FEW_TOKENS


def known_alignment(tables: LoraTables) -> int:
    """Of the pool's offsets, in elements, as far as a load has use for it."""
    return gcd(tables.alignment, _LOAD_BYTES // tables.pool.itemsize)


@triton.jit
@no_type_check
def tile_tokens(slots_ptr, order_ptr, num_tokens, tile, BLOCK_TOKENS: tl.constexpr):
    """(tokens, their slots, sharers' turns), [BLOCK_TOKENS] each: the turn counts the tile's adapters. Beyond the end
    the slot is -1.

    May be read before the wait for inputs: a batch's slots come by a copy.
    """
    place = tile * BLOCK_TOKENS + tl.arange(0, BLOCK_TOKENS)
    is_place = place < num_tokens
    token = tl.load(order_ptr + place, mask=is_place, other=0)
    token_before = tl.load(order_ptr + place - 1, mask=is_place & (place > 0), other=0)
    slot = tl.load(slots_ptr + token, mask=is_place, other=-1)
    slot_before = tl.load(slots_ptr + token_before, mask=is_place, other=-1)
    return token, slot, tl.cumsum((slot != slot_before).to(tl.int32), 0)


@triton.jit
@no_type_check
def slot_below(slots, slot):
    """The highest of the slots below this one, 0 or less if none of an adapter is."""
    return tl.max(tl.where(slots < slot, slots, 0), 0)
