"""Groups a batch's rows into blocks of one expert each, which the grouped products of a mixture of experts work on.

A pair is a token and one of its experts; pair t * k + i is the i-th of token t. Pairs are sorted by expert (stable),
and each expert's pairs are cut into blocks of block_m, the last one padded. So a program of a grouped product reads
only one expert's weights (Gale et al. 2022, MegaBlocks).

    experts [[0, 2], [2, 1]], block_m 2:  pairs [[0, -1], [3, -1], [1, 2]], block_experts [0, 1, 2]

Tensors (T tokens with k experts each, B blocks):
    experts        [T, k]        int32, contiguous, each below num_experts
    pairs          [B, block_m]  int32: a block's pairs, -1 for padding; undefined in unused blocks
    block_experts  [B]           int32: a block's expert, -1 in unused blocks, which come last

B is the most that any such batch could need (`most_blocks`), and the host reads no values: one CUDA graph serves all
batches of this many tokens. T may be 0. num_experts up to 1023.

The kernel has one program per expert. Each counts all pairs to find where its own blocks begin, then collects its own
pairs: no program waits for another, and the order is always the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import tl, triton

_FEW_PAIRS, _MANY_PAIRS = 256, 2048  # pairs per step of a program; not more values, since each is compiled separately


class ExpertRows(NamedTuple):
    """pairs [n] int64, n > 0: all pairs of this expert."""

    expert: int
    pairs: Tensor


@dataclass(frozen=True)
class ExpertBlocks:
    """top_k: pairs per token. num_pairs: of all tokens."""

    pairs: Tensor
    block_experts: Tensor
    top_k: int
    num_pairs: int

    @cached_property
    def by_expert(self) -> tuple[ExpertRows, ...]:
        """Experts that have pairs. For the references: it reads values, for which a GPU would have to be waited for."""
        experts, pairs = self.block_experts.tolist(), self.pairs.long()
        used = [expert for expert in experts if expert >= 0]
        bounds = [i for i in range(len(used)) if i == 0 or used[i] != used[i - 1]] + [len(used)]
        rows = [pairs[begin:end].flatten() for begin, end in pairwise(bounds)]
        return tuple(
            ExpertRows(used[begin], of_expert[of_expert >= 0])
            for begin, of_expert in zip(bounds[:-1], rows, strict=True)
        )


def most_blocks(num_pairs: int, num_experts: int, block_m: int) -> int:
    """The most blocks that so many pairs can need: each expert's last block may hold only one pair."""
    return min(num_pairs, num_pairs // block_m + num_experts)


def expert_blocks_reference(experts: Tensor, num_experts: int, block_m: int) -> ExpertBlocks:
    flat = experts.flatten().long()
    num_blocks = most_blocks(len(flat), num_experts, block_m)
    order = flat.argsort(stable=True)
    counts = flat.bincount(minlength=num_experts)
    blocks = (counts + block_m - 1) // block_m
    first_pairs, first_blocks = counts.cumsum(0) - counts, blocks.cumsum(0) - blocks
    pairs = torch.full((num_blocks * block_m,), -1, dtype=torch.int32, device=experts.device)
    of_order = flat[order]
    rank = torch.arange(len(flat), device=experts.device) - first_pairs[of_order]
    pairs[first_blocks[of_order] * block_m + rank] = order.int()
    block_experts = torch.full((num_blocks,), -1, dtype=torch.int32, device=experts.device)
    used = torch.arange(num_experts, device=experts.device).repeat_interleave(blocks)
    block_experts[: len(used)] = used.int()
    return ExpertBlocks(pairs.view(num_blocks, block_m), block_experts, experts.shape[1], len(flat))


@triton.jit(do_not_specialize=["num_pairs", "num_blocks"])
@no_type_check
def _expert_blocks_kernel(
    experts_ptr,
    pairs_ptr,
    block_experts_ptr,
    num_pairs,
    num_blocks,
    NUM_EXPERTS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_PAIRS: tl.constexpr,
    BINS: tl.constexpr,  # more than NUM_EXPERTS: one bin counts lanes without a pair
    PDL: tl.constexpr,
):
    """Program: one expert. It writes that expert's blocks, and its share of the unused ones."""
    wait_for_inputs(PDL)
    own = tl.program_id(0)
    expert = tl.arange(0, BINS)
    counts = tl.zeros([BINS], tl.int32)
    for base in range(0, num_pairs, BLOCK_PAIRS):
        pair = base + tl.arange(0, BLOCK_PAIRS)
        counts += tl.histogram(tl.load(experts_ptr + pair, mask=pair < num_pairs, other=NUM_EXPERTS), BINS)
    blocks = tl.where(expert < NUM_EXPERTS, tl.cdiv(counts, BLOCK_M), 0)
    first_block = tl.sum(tl.where(expert < own, blocks, 0), 0)
    own_blocks = tl.sum(tl.where(expert == own, blocks, 0), 0)
    used_blocks = tl.sum(blocks, 0)

    if own_blocks > 0:
        first_ptr = pairs_ptr + first_block * BLOCK_M
        num_found = 0
        for base in range(0, num_pairs, BLOCK_PAIRS):
            pair = base + tl.arange(0, BLOCK_PAIRS)
            is_own = tl.load(experts_ptr + pair, mask=pair < num_pairs, other=NUM_EXPERTS) == own
            rank = num_found + tl.cumsum(is_own.to(tl.int32), 0) - 1
            tl.store(first_ptr + rank, pair, mask=is_own)
            num_found += tl.sum(is_own.to(tl.int32), 0)
        padding = num_found + tl.arange(0, BLOCK_M)
        tl.store(first_ptr + padding, -1, mask=padding < own_blocks * BLOCK_M)
        for block in range(own_blocks):
            tl.store(block_experts_ptr + first_block + block, own)
    for block in range(used_blocks + own, num_blocks, NUM_EXPERTS):
        tl.store(block_experts_ptr + block, -1)


def expert_blocks_triton(experts: Tensor, num_experts: int, block_m: int) -> ExpertBlocks:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_tokens, top_k = experts.shape
    num_pairs = num_tokens * top_k
    assert experts.dtype == torch.int32 and experts.is_contiguous() and num_experts < 1024
    num_blocks = most_blocks(num_pairs, num_experts, block_m)
    pairs = torch.empty((num_blocks, block_m), dtype=torch.int32, device=experts.device)
    block_experts = torch.empty(num_blocks, dtype=torch.int32, device=experts.device)
    if num_pairs:
        _expert_blocks_kernel[(num_experts,)](
            experts,
            pairs,
            block_experts,
            num_pairs,
            num_blocks,
            NUM_EXPERTS=num_experts,
            BLOCK_M=block_m,
            BLOCK_PAIRS=_FEW_PAIRS if num_pairs <= _FEW_PAIRS else _MANY_PAIRS,
            BINS=triton.next_power_of_2(num_experts + 1),
            num_warps=4,
            **dependent_launch(experts.device),
        )
    return ExpertBlocks(pairs, block_experts, top_k, num_pairs)


def expert_blocks(experts: Tensor, num_experts: int, block_m: int) -> ExpertBlocks:
    make = expert_blocks_triton if experts.is_cuda else expert_blocks_reference
    return make(experts, num_experts, block_m)
