"""A micro-batch on the device, as the layers need it."""

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
    """Of T tokens. token_ids [T] int64. cos, sin, back_sin [T, R] fp32: rotations by the tokens' positions, as
    kernels/rotary_embedding.py takes them; with back_sin they turn back. trained_rows, targets [N] int64: tokens with a
    loss, and what they should predict."""

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
        """What launches depend on, where attention is FlashAttention."""
        return BatchSize(self.num_tokens, len(self.sequences.lengths), self.sequences.longest)

    def copy_from(self, other: BatchTensors) -> BatchTensors:
        """The other's values, of the same size, with what layers read at this one's addresses."""
        assert other.size == self.size
        for mine, its in zip(self._of_layers(), other._of_layers(), strict=True):
            mine.copy_(its)
        token_ids, cos, sin, back_sin, starts = self._of_layers()
        return BatchTensors(
            token_ids, cos, sin, back_sin, other.sequences._replace(starts=starts), other.trained_rows, other.targets
        )

    def _of_layers(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """The rest is the loss's."""
        return self.token_ids, self.cos, self.sin, self.back_sin, self.sequences.starts


class BatchSize(NamedTuple):
    num_tokens: int
    num_sequences: int
    longest: int


_NUM_TOKENS_STEP = 32
"""So there are few numbers of tokens: oneDNN makes code for each new one, about a millisecond a product."""

_GRAPH_TOKENS = (64, 128, 256, 384, 512, 768, 1024, 1536, MOST_GRAPH_TOKENS)
"""Of micro-batches that graphs compute: so few that each is met again. A device takes for up to 256 tokens about as
long as for 64, so padding costs little; those that are full have none."""


def batch_tensors(
    batch: MicroBatch, rotary: RotaryEmbedding, device: torch.device, *, in_few_sizes: bool = False
) -> BatchTensors:
    """Most of the padding is cut off; what is left of it is one more sequence. Nobody waits for the device.

    in_few_sizes: a micro-batch of up to MOST_GRAPH_TOKENS tokens is padded to one of few sizes, also with sequences
    that have no tokens. There are two at least: beside a single one of 32 heads FlashAttention's backward pass divides
    its work by five, and three parts keep a device of 132 multiprocessors better busy.
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
    """Those of `batch_tensors`, with what is left of the padding."""
    num_used = int(batch.lengths.sum())
    is_small = in_few_sizes and num_used <= MOST_GRAPH_TOKENS
    return min(len(batch.token_ids), _few_tokens(num_used) if is_small else _few_shapes(num_used))


def _few_tokens(num_tokens: int) -> int:
    return next(size for size in _GRAPH_TOKENS if size >= num_tokens)


def _few_shapes(num_tokens: int) -> int:
    return -(-num_tokens // _NUM_TOKENS_STEP) * _NUM_TOKENS_STEP
