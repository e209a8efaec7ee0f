"""Copy whole blocks, all layers, in one call (copy-on-write; vLLM section 5.1: fused block copy).

    storage[destinations[i]] = storage[sources[i]]   for every i, all reads before all writes or in any order

Tensors (B blocks):
    storage       [B, ...]  any dtype, contiguous; block-major, so a block is one piece. Written in place.
    sources       [N]       int64
    destinations  [N]       int64; distinct, and none is among the sources

Bit for bit. Offsets are int64. N may be 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def copy_blocks_reference(storage: Tensor, sources: Tensor, destinations: Tensor) -> None:
    storage.index_copy_(0, destinations, storage.index_select(0, sources))


def copy_blocks(storage: Tensor, sources: Tensor, destinations: Tensor) -> None:
    assert storage.is_contiguous()
    assert sources.dtype == destinations.dtype == torch.int64 and sources.shape == destinations.shape
    copy_blocks_reference(storage, sources, destinations)
