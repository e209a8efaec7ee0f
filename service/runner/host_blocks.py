"""Blocks on the host that swapped sequences leave for: as they are, or rounded to fp8 in half the memory of bf16."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from service.runner.kv_storage import KvLayout

_FP8 = torch.float8_e4m3fn
_FP8_MAX = 448.0
_SMALLEST = 1e-30
"""A vector of zeros has no largest element to divide by."""


Copy = Callable[[], object]
"""Prepared; called on the stream that carries it, it copies, and does not wait for that."""


class HostBlocks(Protocol):
    """Places for blocks on the host, 0 to len - 1, and copies of single blocks to and from them.

    block: a device block, the layout's shape in its dtype.
    """

    def __len__(self) -> int: ...

    @staticmethod
    def block_bytes(layout: KvLayout) -> int:
        """What one block takes on the host."""
        ...

    def store(self, block: Tensor, index: int) -> Copy:
        """From the device to place `index`."""
        ...

    def load(self, block: Tensor, index: int) -> Copy:
        """From place `index` to the device: overwrites `block`."""
        ...


class PlainHostBlocks:
    """Blocks stored as they are: what comes back is exactly what was swapped out."""

    def __init__(self, layout: KvLayout, num_blocks: int, *, pinned: bool) -> None:
        self._blocks = torch.zeros(
            (num_blocks, *layout.shape), dtype=layout.dtype, pin_memory=pinned and num_blocks > 0
        )

    @staticmethod
    def block_bytes(layout: KvLayout) -> int:
        return layout.block_bytes

    def __len__(self) -> int:
        return len(self._blocks)

    def store(self, block: Tensor, index: int) -> Copy:
        return partial(self._blocks[index].copy_, block, non_blocking=True)

    def load(self, block: Tensor, index: int) -> Copy:
        return partial(block.copy_, self._blocks[index], non_blocking=True)


class Fp8HostBlocks:
    """Plain blocks stored in fp8. The key of one token in one head, and likewise the value, becomes a scale (fp32: its
    largest element over 448) and e4m3 elements.

    What comes back is off by at most 1/16 of itself, or by 1/1024 of the scale where that is more, before it is rounded
    to the layout's type. A token's NaN stays its own: a block's cells without a token may hold anything.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, *, pinned: bool) -> None:
        pin = pinned and num_blocks > 0
        self._elements = torch.zeros((num_blocks, *layout.shape), dtype=torch.uint8, pin_memory=pin)
        self._scales = torch.zeros((num_blocks, *layout.shape[:-1], 1), dtype=torch.float32, pin_memory=pin)

    @staticmethod
    def block_bytes(layout: KvLayout) -> int:
        num_elements = layout.block_bytes // layout.dtype.itemsize
        return num_elements + num_elements // layout.head_dim * torch.float32.itemsize

    def __len__(self) -> int:
        return len(self._elements)

    def store(self, block: Tensor, index: int) -> Copy:
        return partial(self._store, block, index)

    def load(self, block: Tensor, index: int) -> Copy:
        return partial(self._load, block, index)

    def _store(self, block: Tensor, index: int) -> None:
        exact = block.float()
        scales = exact.abs().amax(-1, keepdim=True).div_(_FP8_MAX).clamp_(min=_SMALLEST)
        elements = exact.div_(scales).to(_FP8)
        self._elements[index].copy_(elements.view(torch.uint8), non_blocking=True)
        self._scales[index].copy_(scales, non_blocking=True)

    def _load(self, block: Tensor, index: int) -> None:
        elements = self._elements[index].to(block.device, non_blocking=True).view(_FP8)
        block.copy_(elements.float() * self._scales[index].to(block.device, non_blocking=True))
