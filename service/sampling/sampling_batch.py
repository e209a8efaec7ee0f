"""The sampling parameters of a batch as tensors, one entry a draw."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """N draws.

    temperature, top_p [N] fp32, top_k [N] int32: as in SamplingParams (0, 1 and 0 switch them off).
    seeds, positions [N] int64: key the draw; position is the new token's index in its sequence.
    is_greedy: every temperature is 0, known on the host, so that nothing else need be looked at.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    seeds: Tensor
    positions: Tensor
    is_greedy: bool
