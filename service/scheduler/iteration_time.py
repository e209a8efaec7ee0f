"""How long an iteration takes, predicted from what it computes (AdaptiveLLM, section 3.1.1).

The paper's predictor takes tokens, batch, layers and hidden size. The last two are constants of a process and end up in
the coefficients: of an iteration, of a token (dearer past each knee, where a device goes from waiting for memory to
computing), of a pair of a prompt's token and one that it attends to, of a token of the longest prompt's context (which
few tokens wait for one after the other, however little they compute), and of a cached token that a decode reads. They
are fitted to timings taken at start-up and refreshed while running.

An executor with CUDA graphs computes a few sizes only, each step in the next larger one. So tokens are counted as it
counts them, and each of its sizes has a correction of its own: how far it is off the law, as the tiles of matrix
products make it be.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

from service.core.iteration_plan import IterationPlan
from service.scheduler.least_squares import Moments, fit_nonnegative

KNEES = (64, 256, 1024)
"""Tokens."""
NUM_FEATURES = 5 + len(KNEES)
MIN_OBSERVED = 12
REFIT_EVERY = 32
KEEP = 1 - 1 / 256
CALIBRATION_WEIGHT = 0.1
"""Timings of the start-up are never forgotten: they know sizes that traffic may not have. Newer ones outweigh them."""
DECODE_EVERY = 16
"""Iterations that only decode are alike and many: so few of them are looked at."""
CORRECTION_RATE = 1 / 8

_START = attrgetter("num_computed_tokens")

PaddedTokens = Callable[[int, bool], int]
"""Tokens that the executor computes for a step of so many; whether there are prompts among them."""


class Workload(NamedTuple):
    """What decides an iteration's time.

    num_tokens: computed. num_pairs: pairs of a prompt's token and a token that it attends to. num_read: tokens that
    the sequences with one token attend to. longest_context: tokens that the last token of a prompt attends to, of the
    prompt with the most.
    """

    num_tokens: int
    num_pairs: int
    num_read: int
    longest_context: int = 0

    @classmethod
    def of(cls, plan: IterationPlan) -> Workload:
        counts = plan.token_counts()
        num_tokens = sum(counts)
        num_read, pairs, longest = sum(map(_START, plan.scheduled)) + len(counts), 0, 0
        if num_tokens > len(counts):  # else all of them decode, as most do
            for item, count in zip(plan.scheduled, counts, strict=True):
                if count > 1:
                    start = item.num_computed_tokens
                    num_read -= start + 1
                    pairs += num_attended_pairs(start, count)
                    longest = max(longest, start + count)
        return cls(num_tokens, pairs, num_read, longest)

    @classmethod
    def of_chunk(cls, start: int, num_tokens: int, num_decodes: int = 0, num_read: int = 0) -> Workload:
        """Tokens start, start + 1, ... of one sequence, beside so many decodes."""
        pairs = num_attended_pairs(start, num_tokens)
        return cls(num_decodes + num_tokens, pairs, num_read, start + num_tokens)


class IterationTime:
    """Engine thread only. padded_tokens: None for an executor that computes as many tokens as it is given."""

    def __init__(self, padded_tokens: PaddedTokens | None = None) -> None:
        self._padded_tokens = padded_tokens
        self._calibration = Moments(NUM_FEATURES)
        self._prefills = Moments(NUM_FEATURES, KEEP)
        self._decodes = Moments(NUM_FEATURES, KEEP)
        self._coefficients: list[float] | None = None
        self._num_since_fit = 0
        self._timings: list[tuple[Workload, float]] = []
        self._corrections: dict[tuple[int, bool], _Correction] = {}

    @property
    def is_known(self) -> bool:
        """Whether enough has been seen to predict anything."""
        return self._coefficients is not None

    def sizes(self, most: int) -> list[int]:
        """Numbers of tokens, up to `most`, that steps with prompts are padded to; none if they are not padded."""
        if self._padded_tokens is None:
            return []
        padded = {self._padded_tokens(num_tokens, True) for num_tokens in range(2, most + 1)}
        return sorted(size for size in padded if size <= most)

    def calibrate(self, workload: Workload, seconds: float) -> None:
        """A timing taken on purpose; `fit` once all are in."""
        self._calibration.add(self._features(workload), seconds)
        self._timings.append((workload, seconds))

    def observe(self, workload: Workload, seconds: float, *, is_decode: bool) -> None:
        """An iteration of the traffic took so long. Refreshes the coefficients now and then."""
        (self._decodes if is_decode else self._prefills).add(self._features(workload), seconds)
        self._num_since_fit += 1
        if self._num_since_fit >= REFIT_EVERY:
            self.fit()
        if self.is_known:
            self._correct(workload, seconds)

    def fit(self) -> None:
        self._num_since_fit = 0
        seen = [(self._calibration, CALIBRATION_WEIGHT), (self._prefills, 1.0), (self._decodes, 1.0)]
        if sum(moments.num_observed for moments, _ in seen) < MIN_OBSERVED:
            return
        self._coefficients = fit_nonnegative(seen)
        timings, self._timings = self._timings, []
        for workload, seconds in timings:
            self._correct(workload, seconds)

    def seconds(self, workload: Workload) -> float:
        """Predicted; only once `is_known`."""
        correction = self._corrections.get(self._size(workload)) if self._corrections else None
        return self._by_law(workload) * (1.0 if correction is None else correction.ratio)

    def _by_law(self, workload: Workload) -> float:
        assert self._coefficients is not None
        return sum(c * f for c, f in zip(self._coefficients, self._features(workload), strict=True))

    def _correct(self, workload: Workload, seconds: float) -> None:
        if self._padded_tokens is not None:
            correction = self._corrections.setdefault(self._size(workload), _Correction())
            correction.observe(seconds / self._by_law(workload))

    def _size(self, workload: Workload) -> tuple[int, bool]:
        """As the executor counts tokens, and whether there are prompts among them."""
        has_prompts = workload.num_pairs > 0
        if self._padded_tokens is None:
            return workload.num_tokens, has_prompts
        return self._padded_tokens(workload.num_tokens, has_prompts), has_prompts

    def _features(self, workload: Workload) -> tuple[float, ...]:
        num_tokens, _ = self._size(workload)
        past_knees = (float(max(0, num_tokens - knee)) for knee in KNEES)
        of_attention = (float(workload.num_pairs), float(workload.num_read), float(workload.longest_context))
        return (1.0, float(num_tokens), *past_knees, *of_attention)


class _Correction:
    """What one size takes, measured by the law: a mean, of the last ones once there are enough."""

    __slots__ = ("num_observed", "ratio")

    def __init__(self) -> None:
        self.ratio = 1.0
        self.num_observed = 0

    def observe(self, ratio: float) -> None:
        self.num_observed += 1
        self.ratio += (ratio - self.ratio) * max(CORRECTION_RATE, 1 / self.num_observed)


def num_attended_pairs(start: int, num_tokens: int) -> int:
    """Pairs of a computed token and a token that it attends to, for tokens at start, start + 1, ..."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2
