"""What a preemption costs, predicted (AdaptiveLLM, sections 3.1.1 and 3.1.2).

Recomputing n tokens takes one prefill: a cost for each iteration, for each token, and for each pair of a token and
one before it (attention). The three are fitted to measured iterations by least squares, at start-up and while running;
layers and hidden size, which the paper's predictor also takes, are constants of a process and end up in them.
Swapping takes the bytes of the blocks over the measured bandwidth, once out and once in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW = 512
REFIT_EVERY = 64
NUM_FEATURES = 3

Features = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class SwapBandwidth:
    """Measured bytes a second, each way, in pieces of one block."""

    block_bytes: int
    to_host: float
    to_device: float


class PreemptionCost:
    """Engine thread only."""

    def __init__(self, bandwidth: SwapBandwidth, max_tokens_an_iteration: int) -> None:
        self._bandwidth = bandwidth
        self._max_tokens = max_tokens_an_iteration
        self._samples: deque[tuple[Features, float]] = deque(maxlen=WINDOW)
        self._coefficients: Features = (0.0, 0.0, 0.0)
        self._num_since_fit = 0

    def observe(self, num_tokens: int, num_pairs: int, seconds: float) -> None:
        """An iteration of so many tokens, attending to so many before them in all, took so long."""
        self._samples.append(((1.0, float(num_tokens), float(num_pairs)), seconds))
        self._num_since_fit += 1
        if self._num_since_fit >= REFIT_EVERY:
            self.fit()

    def fit(self) -> None:
        """Fit the coefficients to the samples in the window."""
        self._num_since_fit = 0
        self._coefficients = _least_squares(list(self._samples))

    def iteration_s(self, num_tokens: int, num_pairs: int) -> float:
        """Predicted seconds of an iteration."""
        per_iteration, per_token, per_pair = self._coefficients
        return per_iteration + per_token * num_tokens + per_pair * num_pairs

    def recompute_s(self, num_tokens: int) -> float:
        """Predicted seconds to compute a dropped cache of so many tokens again, in chunks of the token budget."""
        seconds = 0.0
        for start in range(0, num_tokens, self._max_tokens):
            chunk = min(self._max_tokens, num_tokens - start)
            seconds += self.iteration_s(chunk, num_attended_pairs(start, chunk))
        return seconds

    def swap_s(self, num_blocks: int) -> float:
        """Predicted seconds to move so many blocks out and back in."""
        num_bytes = num_blocks * self._bandwidth.block_bytes
        return num_bytes / self._bandwidth.to_host + num_bytes / self._bandwidth.to_device


def num_attended_pairs(start: int, num_tokens: int) -> int:
    """Pairs of a computed token and a token that it attends to, for tokens at start, start + 1, ..."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


def _least_squares(samples: list[tuple[Features, float]]) -> Features:
    """Coefficients >= 0 of least relative error; a feature that would get less than 0 is left out."""
    active = list(range(NUM_FEATURES))
    while True:
        solution = _solve(samples, active)
        negative = [feature for feature in active if solution[feature] < 0]
        if not negative:
            return solution
        active.remove(min(negative, key=lambda feature: solution[feature]))


def _solve(samples: list[tuple[Features, float]], active: list[int]) -> Features:
    """Normal equations by elimination. Weighted by 1/seconds, so that short iterations count as much as long ones."""
    size = len(active)
    rows = [[0.0] * (size + 1) for _ in range(size)]
    for features, seconds in samples:
        scaled = [features[feature] / seconds for feature in active]
        for i in range(size):
            for j in range(size):
                rows[i][j] += scaled[i] * scaled[j]
            rows[i][size] += scaled[i]
    solution = [0.0] * NUM_FEATURES
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(rows[row][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        if abs(rows[i][i]) < 1e-30:
            continue
        for row in range(size):
            if row != i:
                factor = rows[row][i] / rows[i][i]
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[i], strict=True)]
    for i, feature in enumerate(active):
        solution[feature] = rows[i][size] / rows[i][i] if abs(rows[i][i]) >= 1e-30 else 0.0
    return solution[0], solution[1], solution[2]
