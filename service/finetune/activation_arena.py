"""Layout of a micro-batch's activations in one flat piece of memory, which may be lent and taken back.

Kept per token and layer is only what a backward pass through frozen weights needs and what is expensive to recompute:
the residual stream before the block and before its MLP; packed queries, keys and values; attention's output with its
log-sum-exp; gate and up; and the products of the inputs with the adapters' A. Norms and activation are recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

_ALIGNMENT = 256  # bytes, for the start of every tensor


class LayerActivations(NamedTuple):
    """T tokens in one layer, in the model's dtype except for lse.

    stream [T, hidden_size]: input of the block. qkv [T, (H + 2 K) * D]: after rotary embedding; with head norms, before
    norms and rotation. attended [T, H * D]; lse [H, T] fp32. mlp_stream [T, hidden_size]: input of the MLP's norm.
    gate_up [T, 2 I]. *_shrunk [T, rank * trained parts]: x A^T of the linear of that name.
    """

    stream: Tensor
    qkv: Tensor
    attended: Tensor
    lse: Tensor
    mlp_stream: Tensor
    gate_up: Tensor
    qkv_shrunk: Tensor
    output_shrunk: Tensor
    gate_up_shrunk: Tensor
    down_shrunk: Tensor


class Activations(NamedTuple):
    """A micro-batch's activations. stream [T, hidden_size]: output of the last block. gradient [T, hidden_size]: of the
    residual stream, at the layer that the backward pass has reached."""

    layers: Sequence[LayerActivations]
    stream: Tensor
    gradient: Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Elements per token in one layer. *_rank: rank * trained parts of the linear of that name."""

    hidden_size: int
    qkv_size: int
    attended_size: int
    num_heads: int
    intermediate_size: int
    qkv_rank: int
    output_rank: int
    gate_up_rank: int
    down_rank: int


@dataclass(frozen=True, slots=True)
class ActivationArena:
    """layers: shape of each layer; all have the same hidden_size. dtype: the model's."""

    layers: Sequence[LayerShape]
    dtype: torch.dtype

    def num_bytes(self, num_tokens: int) -> int:
        """Bytes for a micro-batch of `num_tokens` tokens."""
        sizes = (shape for layer in self.layers for shape in self._shapes(layer, num_tokens))
        stream = 2 * _aligned(self._stream_shape(num_tokens), self.dtype)
        return stream + sum(_aligned(shape, dtype) for shape, dtype in sizes)

    def activations(self, memory: Tensor, num_tokens: int) -> Activations:
        """Views of `memory` (flat uint8, at least `num_bytes` long), with undefined values."""
        start = 0

        def view(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
            nonlocal start
            first, start = start, start + _aligned(shape, dtype)
            return memory[first : first + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)

        layers = [LayerActivations(*(view(*each) for each in self._shapes(s, num_tokens))) for s in self.layers]
        stream_shape = self._stream_shape(num_tokens)
        return Activations(layers, view(stream_shape, self.dtype), view(stream_shape, self.dtype))

    def _stream_shape(self, num_tokens: int) -> tuple[int, int]:
        return num_tokens, self.layers[0].hidden_size

    def _shapes(self, layer: LayerShape, num_tokens: int) -> Sequence[tuple[tuple[int, int], torch.dtype]]:
        """Shapes and dtypes in the order of LayerActivations."""
        before_lse = (layer.hidden_size, layer.qkv_size, layer.attended_size)
        behind_lse = (
            layer.hidden_size,
            2 * layer.intermediate_size,
            layer.qkv_rank,
            layer.output_rank,
            layer.gate_up_rank,
            layer.down_rank,
        )
        return (
            *(((num_tokens, size), self.dtype) for size in before_lse),
            ((layer.num_heads, num_tokens), torch.float32),
            *(((num_tokens, size), self.dtype) for size in behind_lse),
        )


def _aligned(shape: tuple[int, int], dtype: torch.dtype) -> int:
    """Size in bytes, rounded up to the alignment."""
    return -(-math.prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
