"""Embeddings: one vector per prompt, pooled from its hidden states in the way that the model was trained for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:  # the checks at start read this module, and should not pay for importing numpy
    import numpy as np
    import numpy.typing as npt
Pooling = Literal["last", "mean"]
"""Which hidden states (of the last layer, after the final norm): the last token's, or the mean over all tokens."""

Vector: TypeAlias = "npt.NDArray[np.float32]"

_LEAST_NORM = 1e-12  # the same as in sentence-transformers


def pooled(pooling: Pooling, states: Vector, num_tokens: int) -> Vector:
    """The pooled vector. states: sum of the hidden states to pool. num_tokens: length of the prompt."""
    return (states / num_tokens).astype(states.dtype, copy=False) if pooling == "mean" else states


@dataclass(frozen=True, slots=True)
class EmbedderConfig:
    """size: elements of a full vector. normalizes: vectors have length 1. dimensions: the sizes to which a vector may
    be truncated (Matryoshka representations, Kusupati et al. 2022); (): any.
    """

    pooling: Pooling
    normalizes: bool
    size: int
    dimensions: tuple[int, ...] = ()

    def finished(self, pooled: Vector, size: int | None) -> Vector:
        """The vector for the client, float32. pooled: as `pooled` returns it. size: to truncate to; None: full."""
        vector = pooled[:size]
        if self.normalizes:
            vector = vector / max(float(vector @ vector) ** 0.5, _LEAST_NORM)
        return vector.astype("<f4", copy=False)
