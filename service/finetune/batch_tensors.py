"""A micro-batch as tensors on the device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.packed_attention import PackedSequences
from service.core.training import MOST_GRAPH_TOKENS
from service.finetune.packing import NOT_TRAINED, MicroBatch
from service.layers.rotary import RotaryEmbedding


class BatchTensors(NamedTuple):
    """T tokens. token_ids [T] int64. cos, sin, back_sin [T, R] fp32: rotations for the tokens' positions, as in
    kernels/rotary_embedding.py; back_sin = -sin undoes the rotation. trained_rows [N] int64: tokens with a loss.
    targets [N] int64: the ids that they should predict."""

    token_ids: Tensor
    cos: Tensor
    sin: Tensor
    back_sin: Tensor
    sequences: PackedSequences
    trained_rows: Tensor
    targets: Tensor

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def size(self) -> BatchSize:
        """Everything that kernel launches depend on, if attention is FlashAttention."""
        return BatchSize(self.num_tokens, len(self.sequences.lengths), self.sequences.longest)

    def copy_from(self, other: BatchTensors) -> BatchTensors:
        """Copy what layers read from a batch of the same size into this one's tensors. Returns a batch with these
        tensors and the other's remaining fields."""
        assert other.size == self.size
        for mine, its in zip(self._of_layers(), other._of_layers(), strict=True):
            mine.copy_(its)
        token_ids, cos, sin, back_sin, starts = self._of_layers()
        return BatchTensors(
            token_ids, cos, sin, back_sin, other.sequences._replace(starts=starts), other.trained_rows, other.targets
        )

    def _of_layers(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The tensors that layers read; only the loss reads the others."""
        return self.token_ids, self.cos, self.sin, self.back_sin, self.sequences.starts


class BatchSize(NamedTuple):
    num_tokens: int
    num_sequences: int
    longest: int


_NUM_TOKENS_STEP = 32
"""Token counts are rounded up to a multiple of this: oneDNN compiles code for every new count, 1 ms per product."""

_GRAPH_TOKENS = (64, 128, 256, 384, 512, 768, 1024, 1536, MOST_GRAPH_TOKENS)
"""Micro-batches for CUDA graphs are padded to these sizes: few, so that each recurs. Up to 256 tokens take a device
about as long as 64, so padding is cheap; full micro-batches have none."""


def batch_tensors(
    batch: MicroBatch, rotary: RotaryEmbedding, device: torch.device, *, in_few_sizes: bool = False
) -> BatchTensors:
    """Cuts off most of the padding; the rest becomes one more sequence. Does not wait for the device.

    in_few_sizes: pad a micro-batch of up to MOST_GRAPH_TOKENS tokens to one of a few sizes, and its number of sequences
    with empty ones to a power of two, at least two: with a single sequence of 32 heads, FlashAttention's backward pass
    divides its work by five, which keeps 132 multiprocessors less busy than three parts do.
    """
    lengths = tuple(batch.lengths.tolist())
    is_small = in_few_sizes and sum(lengths) <= MOST_GRAPH_TOKENS
    num_tokens = num_computed_tokens(batch, in_few_sizes=in_few_sizes)
    if sum(lengths) < num_tokens:
        lengths += (num_tokens - sum(lengths),)
    longest = max(lengths)
    if is_small:
        lengths += (0,) * (max(2, 1 << (len(lengths) - 1).bit_length()) - len(lengths))
        longest = num_tokens
    rows = np.flatnonzero(batch.targets != NOT_TRAINED)
    starts = np.cumsum((0, *lengths), dtype=np.int32)

    def there(values: npt.NDArray[np.integer]) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor if device.type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)

    cos, sin = rotary(there(batch.positions[:num_tokens]))
    return BatchTensors(
        token_ids=there(batch.token_ids[:num_tokens]),
        cos=cos,
        sin=sin,
        back_sin=-sin,
        sequences=PackedSequences(lengths, there(starts), longest),
        trained_rows=there(rows),
        targets=there(batch.targets[rows]),
    )


def num_computed_tokens(batch: MicroBatch, *, in_few_sizes: bool) -> int:
    """Tokens that `batch_tensors` makes of the batch, including padding."""
    num_used = int(batch.lengths.sum())
    is_small = in_few_sizes and num_used <= MOST_GRAPH_TOKENS
    return min(len(batch.token_ids), _few_tokens(num_used) if is_small else _few_shapes(num_used))


def _few_tokens(num_tokens: int) -> int:
    return next(size for size in _GRAPH_TOKENS if size >= num_tokens)


def _few_shapes(num_tokens: int) -> int:
    return -(-num_tokens // _NUM_TOKENS_STEP) * _NUM_TOKENS_STEP
