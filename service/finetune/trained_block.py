"""One frozen Llama block with trained adapters, forward and backward, on the serving weights.

Explicit, without autograd: it runs in inference mode beside serving, one layer at a time, and keeps only what
activation_arena.py lists. Autograd over transformers' model is its twin in the tests.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kernels.packed_attention import packed_attention, packed_attention_backward
from kernels.rms_norm import rms_norm
from kernels.rms_norm_backward import rms_norm_backward
from kernels.rotary_embedding import rotary_embedding
from kernels.silu_and_mul import silu_and_mul
from kernels.silu_and_mul_backward import silu_and_mul_backward
from service.finetune.activation_arena import LayerActivations, LayerShape
from service.finetune.batch_tensors import BatchTensors
from service.finetune.lora_parameters import LoraParameters
from service.finetune.trained_linear import TrainedLinear
from service.finetune.training_state import ParameterLayout
from service.layers.gated_mlp import GatedMlp
from service.layers.rms_norm import RMSNorm
from service.layers.tensor_parallel import ALONE, TensorParallel
from service.models.llama import LlamaAttention, LlamaBlock
from service.models.qwen3 import Qwen3Attention


class TrainedBlock:
    """name: prefix of the block's tensor names in the checkpoint. scale: of the adapters. parallel: ranks, each
    with a part of the block: some heads, and some of the MLP's inner dimension."""

    def __init__(
        self,
        block: LlamaBlock,
        name: str,
        parameters: LoraParameters,
        scale: float,
        parallel: TensorParallel = ALONE,
    ) -> None:
        attention = block.attention
        self._qkv, self._output, self._gate_up, self._down = (
            TrainedLinear(linear.below(name), parameters, scale, parallel) for linear in block.linears()
        )
        self._attention_norm, self._mlp_norm = block.attention_norm, block.mlp_norm
        self._head_norms = _head_norms(attention)
        self._num_heads, self._head_dim = attention.num_heads, attention.head_dim
        self._num_kv_heads = attention.qkv.out_features[1] // attention.head_dim
        self._scale, self._window = attention.scale, attention.sliding_window

    def forward(self, kept: LayerActivations, stream: Tensor, batch: BatchTensors) -> None:
        """From kept.stream to `stream` [T, hidden_size], the input of the next block. Fills the rest of `kept`."""
        normed = rms_norm(kept.stream, self._attention_norm.weight, self._attention_norm.eps)
        self._qkv.forward(normed, kept.qkv, kept.qkv_shrunk)
        attended, lse = packed_attention(*self._rotated(kept.qkv, batch), batch.sequences, self._scale, self._window)
        kept.attended.copy_(attended.flatten(1))
        kept.lse.copy_(lse)
        self._output.forward(kept.attended, kept.mlp_stream, kept.output_shrunk)
        kept.mlp_stream.add_(kept.stream)

        normed = rms_norm(kept.mlp_stream, self._mlp_norm.weight, self._mlp_norm.eps)
        self._gate_up.forward(normed, kept.gate_up, kept.gate_up_shrunk)
        self._down.forward(silu_and_mul(kept.gate_up), stream, kept.down_shrunk)
        stream.add_(kept.mlp_stream)

    def backward(
        self, kept: LayerActivations, gradient: Tensor, batch: BatchTensors, *, accumulates: bool, is_first: bool
    ) -> None:
        """gradient [T, hidden_size]: of the block's output; overwritten with that of kept.stream, unless `is_first`,
        where it is not needed. accumulates: add to the gradients of A and B. Overwrites `kept`."""
        self._mlp_backward(kept, gradient, accumulates=accumulates)
        self._attention_backward(kept, gradient, batch, accumulates=accumulates, is_first=is_first)

    def _mlp_backward(self, kept: LayerActivations, gradient: Tensor, *, accumulates: bool) -> None:
        shrunk_grad = self._down.shrunk_gradient(gradient)
        activated_grad = self._down.input_gradient(gradient, shrunk_grad)
        activated = silu_and_mul_backward(activated_grad, kept.gate_up)
        if accumulates:
            self._down.accumulate(activated, kept.down_shrunk, gradient, shrunk_grad)
        gate_up_grad = kept.gate_up
        shrunk_grad = self._gate_up.shrunk_gradient(gate_up_grad)
        normed, _ = rms_norm_backward(
            self._gate_up.input_gradient(gate_up_grad, shrunk_grad),
            kept.mlp_stream,
            self._mlp_norm.weight,
            self._mlp_norm.eps,
            gradient,
        )
        if accumulates:
            self._gate_up.accumulate(normed, kept.gate_up_shrunk, gate_up_grad, shrunk_grad)

    def _attention_backward(
        self, kept: LayerActivations, gradient: Tensor, batch: BatchTensors, *, accumulates: bool, is_first: bool
    ) -> None:
        shrunk_grad = self._output.shrunk_gradient(gradient)
        attended_grad = self._output.input_gradient(gradient, shrunk_grad)
        if accumulates:
            self._output.accumulate(kept.attended, kept.output_shrunk, gradient, shrunk_grad)
        qkv_grad = self._qkv_gradient(attended_grad, kept, batch)
        shrunk_grad = self._qkv.shrunk_gradient(qkv_grad)
        norm = self._attention_norm
        if is_first:
            if accumulates:
                normed = rms_norm(kept.stream, norm.weight, norm.eps)
                self._qkv.accumulate(normed, kept.qkv_shrunk, qkv_grad, shrunk_grad)
            return
        normed, _ = rms_norm_backward(
            self._qkv.input_gradient(qkv_grad, shrunk_grad), kept.stream, norm.weight, norm.eps, gradient
        )
        if accumulates:
            self._qkv.accumulate(normed, kept.qkv_shrunk, qkv_grad, shrunk_grad)

    def _qkv_gradient(self, attended_grad: Tensor, kept: LayerActivations, batch: BatchTensors) -> Tensor:
        """[T, (H + 2 K) * D]: gradient of the packed projection."""
        heads_shape = (-1, self._num_heads, self._head_dim)
        grads = packed_attention_backward(
            attended_grad.view(heads_shape),
            *self._rotated_again(kept.qkv, batch),
            kept.attended.view(heads_shape),
            kept.lse,
            batch.sequences,
            self._scale,
            self._window,
        )
        heads = torch.cat(grads, dim=1)
        rotary_embedding(heads[:, : self._first_value], batch.cos, batch.back_sin)
        if self._head_norms is not None:
            before = kept.qkv.view(heads.shape)
            for norm, place in zip(self._head_norms, self._normed_heads, strict=True):
                heads[:, place] = rms_norm_backward(heads[:, place], before[:, place], norm.weight, norm.eps)[1]
        return heads.flatten(1)

    def _rotated(self, qkv: Tensor, batch: BatchTensors) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value heads as attention takes them. Rotates the packed projection in place; with head norms
        on a copy, since the norms' gradient needs the original."""
        heads = qkv.view(qkv.shape[0], -1, self._head_dim)
        if self._head_norms is not None:
            heads = heads.clone()
            for norm, place in zip(self._head_norms, self._normed_heads, strict=True):
                heads[:, place] = rms_norm(heads[:, place], norm.weight, norm.eps)
        rotary_embedding(heads[:, : self._first_value], batch.cos, batch.sin)
        return self._split(heads)

    def _rotated_again(self, qkv: Tensor, batch: BatchTensors) -> tuple[Tensor, Tensor, Tensor]:
        """The same tensors as `_rotated` returned in the forward pass."""
        if self._head_norms is not None:
            return self._rotated(qkv, batch)
        return self._split(qkv.view(qkv.shape[0], -1, self._head_dim))

    def _split(self, heads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first_key, first_value = self._num_heads, self._first_value
        return heads[:, :first_key], heads[:, first_key:first_value], heads[:, first_value:]

    @property
    def _first_value(self) -> int:
        return self._num_heads + self._num_kv_heads

    @property
    def _normed_heads(self) -> tuple[slice, slice]:
        """Index ranges of query and key heads."""
        return slice(0, self._num_heads), slice(self._num_heads, self._first_value)


def _head_norms(attention: LlamaAttention) -> tuple[RMSNorm, RMSNorm] | None:
    return (attention.query_norm, attention.key_norm) if isinstance(attention, Qwen3Attention) else None


def layer_shape(block: LlamaBlock, name: str, layout: ParameterLayout) -> LayerShape:
    """Shape of what a TrainedBlock of this block keeps."""
    qkv, output, gate_up, down = (
        layout.rank * sum(part in layout.sites for part in linear.below(name).names) for linear in block.linears()
    )
    attention, mlp = block.attention, block.mlp
    assert isinstance(mlp, GatedMlp), "mixtures of experts are not trained"
    return LayerShape(
        hidden_size=attention.qkv.in_features,
        qkv_size=sum(attention.qkv.out_features),
        attended_size=attention.output.in_features,
        num_heads=attention.num_heads,
        intermediate_size=mlp.down.in_features,
        qkv_rank=qkv,
        output_rank=output,
        gate_up_rank=gate_up,
        down_rank=down,
    )
