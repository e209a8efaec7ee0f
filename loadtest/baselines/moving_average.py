"""The simple counterpart of `IterationTime`: an iteration takes as long as recent ones with about as many tokens."""

from __future__ import annotations

from service.prediction.workload import Workload

RATE = 1 / 8
"""Weight of the newest iteration. The first few have equal weights."""

Kind = tuple[bool, int]
"""(whether it has prompts, exponent of the power of two that its tokens are below)."""


class MovingAverage:
    """Ignores contexts, and knows a number of tokens only by its power of two. Engine thread only."""

    def __init__(self) -> None:
        self._means: dict[Kind, tuple[int, float]] = {}

    def observe(self, work: Workload, seconds: float) -> None:
        """Learn from an iteration."""
        kind = _kind(work)
        count, mean_s = self._means.get(kind, (0, 0.0))
        self._means[kind] = count + 1, mean_s + (seconds - mean_s) * max(RATE, 1 / (count + 1))

    def predicted_s(self, work: Workload) -> float | None:
        """As IterationTime's. If this kind was not seen yet, uses the nearest one, preferably of the same type."""
        if not self._means:
            return None
        has_prompts, size = _kind(work)
        nearest = min(self._means, key=lambda kind: (kind[0] != has_prompts, abs(kind[1] - size)))
        return self._means[nearest][1]


def _kind(work: Workload) -> Kind:
    return work.num_prompts > 0, work.num_tokens.bit_length()
