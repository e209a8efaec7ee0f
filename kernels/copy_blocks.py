"""Copy whole blocks, all layers, in one call (copy-on-write; PagedAttention, section 5.1: fused block copy).

    storage[destinations[i]] = storage[sources[i]]   for every i, all reads before all writes or in any order

Tensors (B blocks):
    storage       [B, ...]  any dtype, contiguous; block-major, so a block is contiguous. Written in place.
    sources       [N]       int64
    destinations  [N]       int64; distinct, and none is among the sources

Bit for bit. Offsets are int64. N may be 0, and up to 65535 in the kernel.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

_BLOCK = 4096  # elements a program: 8 warps, two 16-byte loads a thread in bf16


def copy_blocks_reference(storage: Tensor, sources: Tensor, destinations: Tensor) -> None:
    storage.index_copy_(0, destinations, storage.index_select(0, sources))


@triton.jit(do_not_specialize_on_alignment=["sources_ptr", "destinations_ptr"])
@no_type_check
def _copy_blocks_kernel(
    storage_ptr, sources_ptr, destinations_ptr, sources_stride, destinations_stride, size, BLOCK: tl.constexpr
):
    """Program (piece of a block, pair). No cell is both read and written, so the order does not matter."""
    pair = tl.program_id(1).to(tl.int64)
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_element = element < size
    source = tl.load(sources_ptr + pair * sources_stride)
    destination = tl.load(destinations_ptr + pair * destinations_stride)
    values = tl.load(storage_ptr + source * size + element, mask=is_element)
    tl.store(storage_ptr + destination * size + element, values, mask=is_element)


def copy_blocks_triton(storage: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """On CUDA tensors, or on any in Triton's interpreter."""
    assert storage.is_contiguous()
    assert sources.dtype == destinations.dtype == torch.int64 and sources.shape == destinations.shape
    size = storage.shape[1:].numel()
    if len(sources) == 0 or size == 0:
        return
    grid = (triton.cdiv(size, _BLOCK), len(sources))
    strides = sources.stride(0), destinations.stride(0)
    _copy_blocks_kernel[grid](storage, sources, destinations, *strides, size, BLOCK=_BLOCK, num_warps=8)


def copy_blocks(storage: Tensor, sources: Tensor, destinations: Tensor) -> None:
    if storage.is_cuda:
        return copy_blocks_triton(storage, sources, destinations)
    return copy_blocks_reference(storage, sources, destinations)
