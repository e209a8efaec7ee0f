"""A micro-batch on the device, as the layers need it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from kernels.packed_attention import PackedSequences
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


_NUM_TOKENS_STEP = 32
"""So there are few numbers of tokens: oneDNN makes code for each new one, about a millisecond a product."""


def batch_tensors(batch: MicroBatch, rotary: RotaryEmbedding, device: torch.device) -> BatchTensors:
    """Most of the padding is cut off; what is left of it is one more sequence. Nobody waits for the device."""
    lengths = tuple(batch.lengths.tolist())
    num_tokens = min(len(batch.token_ids), -(-sum(lengths) // _NUM_TOKENS_STEP) * _NUM_TOKENS_STEP)
    if sum(lengths) < num_tokens:
        lengths += (num_tokens - sum(lengths),)
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
        sequences=PackedSequences(lengths, there(starts), max(lengths)),
        trained_rows=there(rows),
        targets=there(batch.targets[rows]),
    )
