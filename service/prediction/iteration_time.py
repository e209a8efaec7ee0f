"""How long an iteration takes, predicted from what it computes (AdaptiveLLM, section 3.2).

The paper's features are tokens, batch size, layers and hidden size. The last two are constant in a process, so they are
part of the coefficients. Here, there is one coefficient for
- the iteration itself;
- each token, and each token past a knee, where a device goes from memory-bound to compute-bound;
- each decode, and each cached token that decodes read;
- each prompt (host work), and each pair of a prompt token and a token that it attends to;
- each token of the longest prompt's context, which even few new tokens must go through one after the other;
- each second under heat (device_heat.py).
They are fitted to timings taken at start-up and refitted while serving.

An executor with CUDA graphs pads each step to the next of a few sizes. Tokens and decodes are therefore counted after
padding, and each size has a correction factor of its own: how far it is off the linear law, because of the tiles of
matrix products, say, or of the device's clock lately. A size that was never seen takes the factor of the most similar
size with as many tokens.

If the device has a clock of its own, all seconds are by that clock: computation only, without host work.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import mul
from statistics import median

from service.prediction.device_heat import DeviceHeat, slowed_s
from service.prediction.least_squares import Moments, fit_nonnegative
from service.prediction.workload import Workload

KNEES = (64, 256, 1024)
"""In tokens."""
FEATURES = (
    "iteration",
    "tokens",
    *(f"tokens past {knee}" for knee in KNEES),
    "decodes",
    "pairs",
    "tokens read",
    "longest context",
    "prompts",
    "heat",
)
"""Names of the coefficients."""
MIN_OBSERVED = 12
REFIT_EVERY = 32
KEEP = 1 - 1 / 256
CALIBRATION_WEIGHT = 0.1
"""Weight of start-up timings, which are never forgotten: they cover sizes that traffic may lack. Newer ones weigh
more."""
DECODE_EVERY = 16
"""Decode-only iterations are many and alike, so only one in so many is learned from."""
CORRECTION_RATE = 1 / 4
SETTLED = 8
FARTHEST = 0.15
"""After SETTLED observations of a size, one that is off by more than this is assumed to be disturbed by something else,
and counts as off by this much."""

_UNPADDED = -1

StepSize = tuple[int, int]
"""(tokens, decodes among them) that the executor computes for every step padded to this size."""

PaddedSize = Callable[[int, int, int], StepSize | None]
"""(tokens, decodes among them, prompts) -> the size that such a step is padded to; None if it is not padded.
"""


class IterationTime:
    """Predicts the seconds of an iteration from observed ones. Engine thread only.

    padded_size: None if the executor pads nothing. heat: of the device; whoever observes its iterations updates it.
    """

    def __init__(self, padded_size: PaddedSize | None = None) -> None:
        self.heat = DeviceHeat()
        self._padded_size = padded_size
        self._calibration = Moments(len(FEATURES))
        self._prefills = Moments(len(FEATURES), KEEP)
        self._decodes = Moments(len(FEATURES), KEEP)
        self._coefficients: list[float] | None = None
        self._num_since_fit = 0
        self._shortest_s = math.inf
        self._timings: list[tuple[Workload, float]] = []
        self._corrections: dict[StepSize, _Correction] = {}

    def sizes(self, most: int) -> list[int]:
        """All sizes, in tokens and up to `most`, to which one-prompt steps are padded; empty without padding."""
        if self._padded_size is None:
            return []
        padded = {size[0] for n in range(2, most + 1) if (size := self._padded_size(n, 0, 1)) is not None}
        return sorted(size for size in padded if size <= most)

    def calibrate(self, workload: Workload, seconds: float) -> None:
        """Add a timing made at start-up. Takes effect at the next `fit`."""
        self._calibration.add(_learnt(self.features(workload, self._size(workload)), seconds), seconds)
        self._shortest_s = min(self._shortest_s, seconds)
        self._timings.append((workload, seconds))

    def observe(self, workload: Workload, seconds: float, *, is_decode: bool) -> None:
        """Learn from an iteration of the traffic: update the correction of its size now, and refit the coefficients
        every REFIT_EVERY iterations."""
        size = self._size(workload)
        features = self.features(workload, size)
        (self._decodes if is_decode else self._prefills).add(_learnt(features, seconds), seconds)
        self._shortest_s = min(self._shortest_s, seconds)
        self._num_since_fit += 1
        if self._num_since_fit >= REFIT_EVERY:
            self.fit()
        if self._coefficients is not None and self._padded_size is not None:
            ratio = seconds / self._by_law(features)
            if size not in self._corrections:
                like = self._correction(size)
                self._corrections[size] = _Correction(features) if like is None else _Correction(features, like.ratio)
            self._corrections[size].observe(ratio, features)

    def fit(self) -> None:
        """Refit the coefficients to all observations. The corrections are rescaled, so that what was predicted for each
        size's latest workload stays the same."""
        self._num_since_fit = 0
        seen = [(self._calibration, CALIBRATION_WEIGHT), (self._prefills, 1.0), (self._decodes, 1.0)]
        if sum(moments.num_observed for moments, _ in seen) < MIN_OBSERVED:
            return
        corrections = self._corrections.values()
        before = [self._by_law(correction.features) for correction in corrections]
        self._coefficients = fit_nonnegative(seen)
        for correction, seconds in zip(corrections, before, strict=True):
            correction.ratio *= seconds / self._by_law(correction.features)
        timings, self._timings = self._timings, []
        if self._padded_size is not None:
            self._correct_by(timings)

    def predicted_s(self, work: Workload) -> float | None:
        """Predicted seconds of the iteration; None before enough was observed."""
        if self._coefficients is None:
            return None
        size = self._size(work)
        by_law = self._by_law(self.features(work, size))
        correction = self._correction(size)
        return by_law if correction is None else by_law * correction.ratio

    def features(self, workload: Workload, size: StepSize) -> tuple[float, ...]:
        """The values that the coefficients are multiplied with, in the order of FEATURES. size: after padding."""
        num_tokens, num_decodes = (workload.num_tokens, workload.num_decodes) if size[1] == _UNPADDED else size
        past_knees = [max(0, num_tokens - knee) for knee in KNEES]
        _, num_pairs, num_read, longest_context, _, num_prompts, heat = workload
        return (1.0, num_tokens, *past_knees, num_decodes, num_pairs, num_read, longest_context, num_prompts, heat)

    def _by_law(self, features: tuple[float, ...]) -> float:
        """Seconds by the coefficients alone: linear, except that heat applies to the seconds found without it. At least
        the shortest iteration observed, since coefficients of rarely seen features may be 0."""
        assert self._coefficients is not None
        *coefficients, under_heat = self._coefficients
        seconds: float = sum(map(mul, coefficients, features))
        return max(seconds + under_heat * slowed_s(features[-1], seconds), self._shortest_s)

    def _correct_by(self, timings: list[tuple[Workload, float]]) -> None:
        by_size: dict[StepSize, list[tuple[Workload, float]]] = {}
        for workload, seconds in timings:
            by_size.setdefault(self._size(workload), []).append((workload, seconds))
        for size, of_size in by_size.items():
            ratios = [seconds / self._by_law(self.features(workload, size)) for workload, seconds in of_size]
            self._corrections[size] = _Correction(self.features(of_size[0][0], size), median(ratios), len(ratios))

    def _correction(self, size: StepSize) -> _Correction | None:
        """The size's own; else that of the size with the nearest number of decodes among those of equal `_kind`."""
        if size in self._corrections:
            return self._corrections[size]
        alike = [seen for seen in self._corrections if _kind(seen) == _kind(size)]
        return self._corrections[min(alike, key=lambda seen: abs(seen[1] - size[1]))] if alike else None

    def _size(self, workload: Workload) -> StepSize:
        """The size after padding. Without padding, sizes between two powers of two share a correction."""
        num_tokens, _, _, _, num_decodes, num_prompts, _ = workload
        if self._padded_size is None:
            return num_tokens, num_decodes
        return self._padded_size(num_tokens, num_decodes, num_prompts) or (1 << num_tokens.bit_length(), _UNPADDED)


def _kind(size: StepSize) -> tuple[int, bool, bool]:
    """Sizes that may share a correction: equal tokens, and alike in being all decodes or not, and padded or not."""
    num_tokens, num_decodes = size
    return num_tokens, num_decodes == num_tokens, num_decodes == _UNPADDED


def _learnt(features: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    """The features as they enter the fit: heat is replaced by the seconds under it, in which the law is linear."""
    return (*features[:-1], slowed_s(features[-1], seconds))


class _Correction:
    """A size's (measured time) / (time by the law), as a moving average: at first the plain mean. features: of the
    workload observed last."""

    __slots__ = ("features", "num_observed", "ratio")

    def __init__(self, features: tuple[float, ...], ratio: float = 1.0, num_observed: int = 1) -> None:
        self.features = features
        self.ratio = ratio
        self.num_observed = num_observed

    def observe(self, ratio: float, features: tuple[float, ...]) -> None:
        self.features = features
        self.num_observed += 1
        farther = ratio / self.ratio - 1
        if self.num_observed > SETTLED:
            farther = min(FARTHEST, max(-FARTHEST, farther))
        self.ratio *= 1 + farther * max(CORRECTION_RATE, 1 / self.num_observed)
