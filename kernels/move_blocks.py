"""Move scattered small blocks between the device and the host, or within either, in one launch (PagedAttention 4.5).

    destination[destinations[i]] = source[sources[i]]   for every i, in any order

Tensors (B, C blocks, which have the same shape):
    source        [B, ...]  any dtype, contiguous
    destination   [C, ...]  of the same dtype, contiguous; other memory than `source`. Written in place.
    sources       [N]       int64
    destinations  [N]       int64; distinct

Bit for bit. Offsets are int64. N may be 0. `source` or `destination` may be pinned host memory: the GPU itself reads
and writes it over the bus, so neither side needs a contiguous buffer (as the kernel transfers of SGLang's hierarchical
cache). A few programs have enough bytes in flight to fill the bus; the rest of the GPU computes meanwhile.

One copy per block would leave the GPU's multiprocessors free, but each takes some 12 us to start, in which half a
megabyte crosses the bus. So this is for smaller blocks.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

_NUM_PROGRAMS = 16
_PIECE_BYTES = 16 << 10
"""What a program has in flight: with 16 programs 256 KiB, four times what crosses PCIe 5 in a read's latency of 1 to 2
us."""


def move_blocks_reference(source: Tensor, sources: Tensor, destination: Tensor, destinations: Tensor) -> None:
    destination.flatten(1).index_copy_(0, destinations, source.flatten(1).index_select(0, sources))


@triton.jit(do_not_specialize=["num_pieces"], do_not_specialize_on_alignment=["sources_ptr", "destinations_ptr"])
@no_type_check
def _move_blocks_kernel(
    source_ptr, sources_ptr, destination_ptr, destinations_ptr, size, num_pieces, PIECE: tl.constexpr
):
    """Program p takes pieces p, p + P, ...; a piece is PIECE elements of one block, or what is left of it."""
    pieces_a_block = tl.cdiv(size, PIECE)
    for piece in range(tl.program_id(0), num_pieces, tl.num_programs(0)):
        pair = piece // pieces_a_block
        element = (piece % pieces_a_block) * PIECE + tl.arange(0, PIECE)
        source = tl.load(sources_ptr + pair)
        destination = tl.load(destinations_ptr + pair)
        values = tl.load(source_ptr + source * size + element, mask=element < size)
        tl.store(destination_ptr + destination * size + element, values, mask=element < size)


def move_blocks_triton(source: Tensor, sources: Tensor, destination: Tensor, destinations: Tensor) -> None:
    """On CUDA tensors and pinned ones, or on any in Triton's interpreter."""
    assert source.is_contiguous() and destination.is_contiguous()
    assert source.dtype == destination.dtype and source.shape[1:] == destination.shape[1:]
    assert sources.is_contiguous() and destinations.is_contiguous()
    assert sources.dtype == destinations.dtype == torch.int64 and sources.shape == destinations.shape
    size = source.shape[1:].numel()
    if len(sources) == 0 or size == 0:
        return
    piece = _PIECE_BYTES // source.element_size()
    num_pieces = len(sources) * triton.cdiv(size, piece)
    assert num_pieces < 2**31
    _move_blocks_kernel[(min(_NUM_PROGRAMS, num_pieces),)](
        source, sources, destination, destinations, size, num_pieces, PIECE=piece, num_warps=8
    )


def move_blocks(source: Tensor, sources: Tensor, destination: Tensor, destinations: Tensor) -> None:
    """sources, destinations: on the GPU if `source` or `destination` is."""
    if sources.is_cuda:
        return move_blocks_triton(source, sources, destination, destinations)
    return move_blocks_reference(source, sources, destination, destinations)
