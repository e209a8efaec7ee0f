"""What one step computes, as tensors at fixed places: what a CUDA graph was captured with and reads again."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from service.layers.attention import AttentionInputs
from service.sampling.sampler import SamplingBatch


@dataclass(frozen=True, slots=True)
class StepInputs:
    """T tokens, the first D of them decodes, and N draws; whatever is not used is padding.

    token_ids, positions [T] int64. decode_rows [D] int64: rows of SequenceRows. attention: its last layer is read where
    a draw's logits come from, at N rows in their order. draw_rows [N] int64: the row of the sequence that draws, 0 for
    padding. sampling: of all draws at once, whatever their parameters.
    """

    token_ids: Tensor
    positions: Tensor
    decode_rows: Tensor
    attention: AttentionInputs
    draw_rows: Tensor
    sampling: SamplingBatch
