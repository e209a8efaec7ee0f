"""A prompt's embedding: one vector made of its hidden states, as a model that was trained for it says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:  # a start's checks read the configuration, in a fraction of a second
    import numpy as np
    import numpy.typing as npt
Pooling = Literal["last", "mean"]
"""Which hidden states of the last layer, behind its norm: that of the last token, or the mean of all."""

Vector: TypeAlias = "npt.NDArray[np.float32]"

_LEAST_NORM = 1e-12  # as sentence-transformers divides


def pooled(pooling: Pooling, states: Vector, num_tokens: int) -> Vector:
    """states: the sum of the hidden states that are pooled, of a prompt of so many tokens."""
    return (states / num_tokens).astype(states.dtype, copy=False) if pooling == "mean" else states


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
            vector = vector / max(float(vector @ vector) ** 0.5, _LEAST_NORM)
        return vector.astype("<f4", copy=False)
