"""Blocks out of a dense staging buffer into the storage, in one launch (PagedAttention, section 4.5: swapping in).

    storage[block_ids[i]] = staging[i]      for i < N

Tensors (B blocks):
    staging    [>= N, ...] any dtype, contiguous. Its first N blocks are read
    block_ids  [N]        int64, distinct
    storage    [B, ...]   like staging, contiguous; block-major, so a block is one piece. Other blocks are left alone

Bit for bit. Offsets are int64. N may be 0, and up to 65535 in the kernel. kernels/gather_blocks.py is the way there and
says who does without.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

_BLOCK = 4096  # elements a program: 8 warps, two 16-byte loads a thread in bf16


def scatter_blocks_reference(staging: Tensor, block_ids: Tensor, storage: Tensor) -> None:
    storage.index_copy_(0, block_ids, staging[: len(block_ids)])


@triton.jit(do_not_specialize_on_alignment=["block_ids_ptr"])
@no_type_check
def _scatter_blocks_kernel(staging_ptr, block_ids_ptr, storage_ptr, size, BLOCK: tl.constexpr):
    """Program (piece of a block, block)."""
    index = tl.program_id(1).to(tl.int64)
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_element = element < size
    block_id = tl.load(block_ids_ptr + index)
    values = tl.load(staging_ptr + index * size + element, mask=is_element)
    tl.store(storage_ptr + block_id * size + element, values, mask=is_element)


def scatter_blocks_triton(staging: Tensor, block_ids: Tensor, storage: Tensor) -> None:
    """On CUDA tensors, or on any in Triton's interpreter."""
    assert storage.is_contiguous() and staging.is_contiguous() and block_ids.is_contiguous()
    assert storage.shape[1:] == staging.shape[1:] and storage.dtype == staging.dtype
    assert block_ids.dtype == torch.int64 and len(block_ids) <= len(staging)
    size = storage.shape[1:].numel()
    if len(block_ids) == 0 or size == 0:
        return
    grid = (triton.cdiv(size, _BLOCK), len(block_ids))
    _scatter_blocks_kernel[grid](staging, block_ids, storage, size, BLOCK=_BLOCK, num_warps=8)


def scatter_blocks(staging: Tensor, block_ids: Tensor, storage: Tensor) -> None:
    run = scatter_blocks_triton if storage.is_cuda else scatter_blocks_reference
    run(staging, block_ids, storage)
