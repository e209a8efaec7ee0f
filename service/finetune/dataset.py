"""A training file -> examples: token ids, and which of them are learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """One text to learn from. token_ids: [n] int32, n >= 2. is_trained: [n] bool; token i is predicted with loss. The
    first never is, and at least one is."""

    token_ids: npt.NDArray[np.int32]
    is_trained: npt.NDArray[np.bool_]
