"""Blocks out of the storage into a dense staging buffer, in one launch (PagedAttention, section 4.5: swapping out).

    staging[i] = storage[block_ids[i]]      for i < N

Tensors (B blocks):
    storage    [B, ...]   any dtype, contiguous; block-major, so a block is one piece. Read only
    block_ids  [N]        int64
    staging    [>= N, ...] like storage, contiguous. Its first N blocks are written, the others left alone

Bit for bit. Offsets are int64. N may be 0, and up to 65535 in the kernel. kernels/scatter_blocks.py is the way back.

The service's swap does without: in block-major storage a block is one piece and the host's blocks lie apart, so each is
one copy either way (service/runner/kv_transfer.py). It is for blocks whose other side is dense.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

_BLOCK = 4096  # elements a program: 8 warps, two 16-byte loads a thread in bf16


def gather_blocks_reference(storage: Tensor, block_ids: Tensor, staging: Tensor) -> None:
    torch.index_select(storage, 0, block_ids, out=staging[: len(block_ids)])


@triton.jit(do_not_specialize_on_alignment=["block_ids_ptr"])
@no_type_check
def _gather_blocks_kernel(storage_ptr, block_ids_ptr, staging_ptr, size, BLOCK: tl.constexpr):
    """Program (piece of a block, block)."""
    index = tl.program_id(1).to(tl.int64)
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_element = element < size
    block_id = tl.load(block_ids_ptr + index)
    values = tl.load(storage_ptr + block_id * size + element, mask=is_element)
    tl.store(staging_ptr + index * size + element, values, mask=is_element)


def gather_blocks_triton(storage: Tensor, block_ids: Tensor, staging: Tensor) -> None:
    """On CUDA tensors, or on any in Triton's interpreter."""
    assert storage.is_contiguous() and staging.is_contiguous() and block_ids.is_contiguous()
    assert storage.shape[1:] == staging.shape[1:] and storage.dtype == staging.dtype
    assert block_ids.dtype == torch.int64 and len(block_ids) <= len(staging)
    size = storage.shape[1:].numel()
    if len(block_ids) == 0 or size == 0:
        return
    grid = (triton.cdiv(size, _BLOCK), len(block_ids))
    _gather_blocks_kernel[grid](storage, block_ids, staging, size, BLOCK=_BLOCK, num_warps=8)


def gather_blocks(storage: Tensor, block_ids: Tensor, staging: Tensor) -> None:
    run = gather_blocks_triton if storage.is_cuda else gather_blocks_reference
    run(storage, block_ids, staging)
