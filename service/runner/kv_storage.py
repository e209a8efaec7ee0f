"""The keys and values of all blocks, in one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernels.copy_blocks import copy_blocks
from service.core.iteration_plan import BlockCopy
from service.layers.attention import LayerCache
from service.models.model_config import ModelConfig
from service.runner.host_memory import zeros_on_demand
from service.runner.staging import to_device


@dataclass(frozen=True, slots=True)
class KvLayout:
    """The shape of one block: [num_layers, 2, block_size, num_kv_heads, head_dim] of `dtype`."""

    num_layers: int
    block_size: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def of(cls, config: ModelConfig, block_size: int, dtype: torch.dtype) -> KvLayout:
        return cls(config.num_layers, block_size, config.num_kv_heads, config.head_dim, dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.num_layers, 2, self.block_size, self.num_kv_heads, self.head_dim)

    @property
    def block_bytes(self) -> int:
        return self.num_layers * 2 * self.block_size * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class KvStorage:
    """[num_blocks, num_layers, 2, block_size, num_kv_heads, head_dim], on one device.

    Block-major: a block is one contiguous piece, so that it moves in one copy (swap, copy-on-write). A layer sees
    strided views. Zeroed; on a CPU the memory is taken only as blocks are written.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, device: torch.device) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        self.blocks = _zeros((num_blocks, *layout.shape), layout.dtype, device)
        self.layers = [
            LayerCache(self.blocks[:, layer, 0], self.blocks[:, layer, 1]) for layer in range(layout.num_layers)
        ]

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """Carry out a plan's block copies, all layers at once."""
        pairs = np.array(copies, dtype=np.int64)
        ends = {"sources": pairs[:, 0], "destinations": pairs[:, 1]}
        there = to_device(ends, self.blocks.device)
        copy_blocks(self.blocks, there["sources"], there["destinations"])


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if device.type == "cpu":
        return zeros_on_demand(shape, dtype)
    return torch.zeros(shape, dtype=dtype, device=device)
