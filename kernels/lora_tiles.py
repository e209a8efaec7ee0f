"""How the kernels of adapters cut a batch: into tiles of tokens that are neighbours in the order of slots.

Few of a tile's tokens have different adapters where the batch is large, and all of them may where it is small: a decode
step of 64 users of 64 adapters. So a tile has several programs, its sharers. Each takes every so many'th adapter that
it meets in the tile, multiplies all of the tile's tokens by it and keeps the adapter's own: a product's cost is its
weights' reading, and what another's weights make of a token, be it NaN, goes nowhere.

The cut depends on the number of tokens alone, and a token's result on nothing but its own values and adapter, and on
which of the two cuts it is: numbers of sharers and tiles decide who computes it, not how.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import no_type_check

from kernels.lora_tensors import LoraTables
from kernels.optional_triton import tl, triton

BLOCK_RANK = 16
"""Ranks that are multiplied at once: the least that a product on matrix units takes."""

_MOST_FEW_TOKENS = 256
_LOAD_BYTES = 16


@dataclass(frozen=True, slots=True)
class LoraTiles:
    block_tokens: int
    num_sharers: int


FEW_TOKENS = LoraTiles(block_tokens=16, num_sharers=4)
MANY_TOKENS = LoraTiles(block_tokens=64, num_sharers=4)


def lora_tiles(num_tokens: int) -> LoraTiles:
    """Of as many as a decode step has, or of more."""
    return FEW_TOKENS if num_tokens <= _MOST_FEW_TOKENS else MANY_TOKENS


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
