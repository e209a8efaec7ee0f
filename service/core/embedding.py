"""A prompt's embedding: one vector made of its hidden states, as a model that was trained for it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Pooling = Literal["last", "mean"]
"""Which hidden states of the last layer, behind its norm: that of the last token, or the mean of all."""

Vector = npt.NDArray[np.float32]

_LEAST_NORM = 1e-12  # as sentence-transformers divides


def pooled(pooling: Pooling, states: Vector, num_tokens: int) -> Vector:
    """states: the sum of the hidden states that are pooled, of a prompt of so many tokens."""
    return states / np.float32(num_tokens) if pooling == "mean" else states


@dataclass(frozen=True, slots=True)
class EmbedderConfig:
    """size: numbers of a whole vector. normalizes: vectors have the length 1. dimensions: the sizes that a vector may
    be cut to, its first numbers being the most telling (Kusupati et al. 2022, Matryoshka representations); (): any.
    """

    pooling: Pooling
    normalizes: bool
    size: int
    dimensions: tuple[int, ...] = ()

    def finished(self, pooled: Vector, size: int | None) -> Vector:
        """The vector that a client is given. pooled: hidden states, pooled. size: that it is cut to; None: whole."""
        vector = pooled[:size]
        if self.normalizes:
            vector = vector / np.maximum(np.linalg.norm(vector), np.float32(_LEAST_NORM))
        return vector.astype("<f4", copy=False)
