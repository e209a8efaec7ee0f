"""The tensors that the kernels of low-rank adapters (LoRA, Hu et al. 2021) take: which token has which adapter, and
where the weights lie.

Letters: T tokens, P parts of a projection (q, k and v; o; gate and up; down), R the highest rank served.

An adapter's weights for a part, A [rank, in] and B [out, rank], are stored as rows: the rows of A, and of B transposed.
Each row may be anywhere in a pool that also holds other things (S-LoRA's unified paging, Sheng et al. 2023). Nothing in
the pool or the tables is read except the rows of the batch's own adapters: the rest may be anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_PARTS = 3


@dataclass(frozen=True, slots=True)
class TokenSlots:
    """Which adapter each token of a batch has.

    slots [T] int32: the slot of the token's adapter, 0 for none. tiles [N, 1 + B] int32: made from them by
    kernels/lora_tiles.py; a CPU needs none. Both contiguous.
    """

    slots: Tensor
    tiles: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LoraTables:
    """Where the adapters of all slots have their weights for one projection. Slot 0 means no adapter and is not read.

    pool       [N]           the dtype of x and y, contiguous
    a_offsets  [slots, P, R] int64, last stride 1: where in the pool each row of A begins; the first `rank` of a part
                             count
    b_offsets  [slots, P, R] the same for B transposed
    ranks      [slots, P]    int32, up to R; 0: the adapter does not change this part
    scales     [slots, P]    fp32: factor of A x
    out_features             of the parts, which lie side by side in y
    arrivals   [A]           int32, from `lora_arrivals` (kernels/lora_tiles.py), for one stream at a time: counts
                             finished parts of K. Zero between launches. None: K is not split

    The first four tables may be slices of larger ones. alignment: every offset is a multiple of so many elements. If
    that is known to be 16 bytes, kernels read 16 bytes at once; otherwise a quarter of that or less.
    """

    pool: Tensor
    a_offsets: Tensor
    b_offsets: Tensor
    ranks: Tensor
    scales: Tensor
    out_features: tuple[int, ...]
    alignment: int = 1
    arrivals: Tensor | None = None

    @property
    def num_slots(self) -> int:
        return self.ranks.shape[0]

    @property
    def num_parts(self) -> int:
        return len(self.out_features)

    @property
    def max_rank(self) -> int:
        return self.a_offsets.shape[2]


def check_lora_tensors(rows: Tensor, token_slots: TokenSlots, tables: LoraTables) -> None:
    """Raises AssertionError unless they are as described. rows [T, any]: x or y."""
    num_tokens, num_slots, num_parts = rows.shape[0], tables.num_slots, tables.num_parts
    assert token_slots.slots.shape == (num_tokens,) and token_slots.slots.dtype == torch.int32
    assert token_slots.slots.is_contiguous()
    assert 1 <= num_parts <= MAX_PARTS
    assert rows.dtype == tables.pool.dtype and tables.pool.is_contiguous()
    assert rows.stride(-1) == 1 or not rows.numel()
    for offsets in (tables.a_offsets, tables.b_offsets):
        assert offsets.shape == (num_slots, num_parts, tables.max_rank) and offsets.dtype == torch.int64
        assert offsets.stride(-1) == 1
    for table, dtype in ((tables.ranks, torch.int32), (tables.scales, torch.float32)):
        assert table.shape == (num_slots, num_parts) and table.dtype == dtype


def tokens_by_slot(token_slots: TokenSlots) -> list[tuple[int, Tensor]]:
    """Each slot of the batch except 0, with the indices of its tokens. For the references."""
    slots = token_slots.slots
    return [(slot, (slots == slot).nonzero()[:, 0]) for slot in slots.unique().tolist() if slot]


def rows_of_pool(pool: Tensor, offsets: Sequence[int], size: int) -> Tensor:
    """[rows, size]: a view if they are adjacent, else a copy. For the references."""
    first = offsets[0]
    end = first + len(offsets) * size
    if offsets == list(range(first, end, size)):
        return pool[first:end].view(-1, size)
    return torch.stack([pool[offset : offset + size] for offset in offsets])
