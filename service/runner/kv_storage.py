"""The keys and values of all blocks, in one tensor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.copy_blocks import copy_blocks
from kernels.fp8_cache import FP8, Fp8Cache
from service.config import CacheConfig
from service.core.block_moves import BlockCopy
from service.core.layer_groups import LayerGroups
from service.layers.attention import LayerCache
from service.layers.pipeline_stage import PipelineStage
from service.models.model_config import ModelConfig
from service.runner.device_copies import to_device
from service.runner.host_memory import zeros_on_demand

ALIGNMENT = 256
"""Bytes: the alignment of memory lent to a training, as of torch's own allocations."""

_READ_AT_ONCE = 16
"""Bytes that kernels read at once."""

_COPIED_AT_ONCE = 64 << 20
"""Bytes copied by one launch; a CPU holds them twice meanwhile."""

_MOST_COPIES = 65535
"""Block copies of one launch."""


@dataclass(frozen=True, slots=True)
class KvLayout:
    """One block: [num_layers, 2, block_size, num_kv_heads, head_dim] of `dtype`; with `is_fp8` of 8 bits, followed by
    the exponents of every head (kernels/fp8_cache.py).

    num_layers, num_kv_heads: of one rank; with several groups of layers, num_layers is that of one group. dtype: the
    model's compute dtype, in which adapters lie in blocks too. groups: None: one group of all layers, in their order.
    """

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    is_fp8: bool = False
    groups: LayerGroups | None = None

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        block_size: int,
        dtype: torch.dtype,
        num_ranks: int = 1,
        num_stages: int = 1,
        *,
        is_fp8: bool = False,
        groups: LayerGroups | None = None,
    ) -> KvLayout:
        """num_ranks: tensor-parallel ranks, which share the heads of each layer."""
        num_layers = config.num_layers // num_stages
        if groups is not None and groups.tables.size > 1:
            num_layers = groups.layers_each
        num_kv_heads = max(1, config.num_kv_heads // num_ranks)
        return cls(num_layers, block_size, num_kv_heads, config.head_dim, dtype, is_fp8, groups)

    @property
    def num_groups(self) -> int:
        """How many blocks the keys and values of block_size tokens of a sequence fill."""
        return 1 if self.groups is None else self.groups.tables.size

    @property
    def layer_places(self) -> Sequence[int]:
        """The place of each layer in a block of its group."""
        if self.groups is None or self.num_groups == 1:
            return range(self.num_layers)
        return [place for _, place in self.groups.places]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in which a block is moved, in `dtype`."""
        return (self.block_bytes // self.dtype.itemsize,) if self.is_fp8 else self.cells

    @property
    def cells(self) -> tuple[int, ...]:
        """The shape of a block's keys and values."""
        return (self.num_layers, 2, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def block_bytes(self) -> int:
        num_elements = math.prod(self.cells)
        if not self.is_fp8:
            return num_elements * self.dtype.itemsize
        # Kernels count in heads and read _READ_AT_ONCE bytes at once: the next block begins at a multiple of both.
        multiple = math.lcm(self.head_dim, _READ_AT_ONCE)
        return -(-(num_elements + num_elements // self.head_dim) // multiple) * multiple

    def num_blocks_to_lend(self, num_bytes: int) -> int:
        """How many adjacent blocks have room for `num_bytes`, wherever the first of them begins."""
        lost = 0 if self.block_bytes % ALIGNMENT == 0 else ALIGNMENT - 1
        return -(-(num_bytes + lost) // self.block_bytes)


class KvStorage:
    """blocks: [num_blocks, *layout.shape], on one device.

    Block-major: a block is contiguous, so that it moves in one copy (swap, copy-on-write). A layer sees strided views.
    Zeroed; on a CPU the memory is taken only as blocks are written.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, device: torch.device) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.blocks = _zeros((num_blocks, *layout.shape), layout.dtype, device)
        of_place = _fp8_layers(self.blocks, layout) if layout.is_fp8 else _layers(self.blocks)
        self.layers = [of_place[place] for place in layout.layer_places]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry out a plan's block copies, all layers at once."""
        pairs = np.array(copies, dtype=np.int64)
        ends = {"sources": pairs[:, 0], "destinations": pairs[:, 1]}
        there = to_device(ends, self.blocks.device)
        at_once = max(1, min(_MOST_COPIES, _COPIED_AT_ONCE // self.layout.block_bytes))
        for first in range(0, len(copies), at_once):
            piece = slice(first, first + at_once)
            copy_blocks(self.blocks, there["sources"][piece], there["destinations"][piece])

    def memory_of(self, block_ids: range, num_bytes: int) -> Tensor:
        """[num_bytes] uint8, aligned, inside these adjacent blocks, as many as `KvLayout.num_blocks_to_lend` says."""
        there = self.blocks[block_ids.start : block_ids.stop].view(-1).view(torch.uint8)
        first = -there.data_ptr() % ALIGNMENT
        assert first + num_bytes <= len(there)
        return there[first : first + num_bytes]


def layer_groups(config: ModelConfig, max_model_len: int, cache: CacheConfig, stage: PipelineStage) -> LayerGroups:
    """The groups of the stage's layers."""
    return LayerGroups.of(
        config.sliding_windows,
        max_model_len,
        is_parted=cache.by_layer_groups,
        num_stages=stage.size,
        stage=stage.index,
    )


def _layers(blocks: Tensor) -> list[LayerCache]:
    return [LayerCache(blocks[:, layer, 0], blocks[:, layer, 1]) for layer in range(blocks.shape[1])]


def _fp8_layers(blocks: Tensor, layout: KvLayout) -> list[LayerCache]:
    stored, num_elements = blocks.view(torch.uint8), math.prod(layout.cells)
    elements = stored[:, :num_elements].view(FP8).unflatten(1, layout.cells)
    exponents = stored[:, num_elements:][:, : num_elements // layout.head_dim].unflatten(1, layout.cells[:-1])
    return [
        LayerCache(*(Fp8Cache(elements[:, layer, part], exponents[:, layer, part]) for part in range(2)))
        for layer in range(layout.num_layers)
    ]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return zeros_on_demand(shape, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)
