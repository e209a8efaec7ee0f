"""How long an iteration takes, predicted from what it computes (AdaptiveLLM, section 3.2).

The paper's predictor takes tokens, batch, layers and hidden size. The last two are constants of a process and end up in
the coefficients. There is one for
- the iteration;
- each token, and each past a knee, where a device goes from waiting for memory to computing;
- each sequence that decodes, and each cached token that it reads;
- each prompt, which the host takes up, and each pair of its token and one that this attends to;
- each token of the longest prompt's context: even few tokens have to go through it, one after the other;
- each second under heat (device_heat.py).
They are fitted to timings taken at start-up and refreshed while running.

An executor with CUDA graphs computes a few sizes only, each step in the next one with room for it. So tokens and
sequences that decode are counted as it counts them, and each of its sizes has a correction of its own: how far it is
off the law, as the tiles of matrix products make it be, and lately the device's clock. A size that was not seen yet
is as far off as one of as many tokens.

Where the device has a clock of its own, all of these are its seconds: of computing, without what the host did before.
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
"""Tokens."""
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
"""What each coefficient is for."""
MIN_OBSERVED = 12
REFIT_EVERY = 32
KEEP = 1 - 1 / 256
CALIBRATION_WEIGHT = 0.1
"""Timings of the start-up are never forgotten: they know sizes that traffic may not have. Newer ones outweigh them."""
DECODE_EVERY = 16
"""Iterations that only decode are alike and many: so few of them are looked at."""
CORRECTION_RATE = 1 / 4
SETTLED = 8
FARTHEST = 0.15
"""Once so many iterations of a size were seen, one that is farther off than this had something else happen in it: it
counts as so far off."""

_UNPADDED = -1

StepSize = tuple[int, int]
"""Tokens, and decodes among them, that the executor computes for every step that it pads to this size."""

PaddedSize = Callable[[int, int, int], StepSize | None]
"""Of tokens, decodes among them, and prompts: the size that such a step is padded to; None if it is computed as it is.
"""


class IterationTime:
    """Predicts the seconds of an iteration from those that it was told of. Engine thread only.

    padded_size: None for an executor that pads nothing. heat: of the device by now; who sees its iterations tells it.
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
        """Tokens, up to `most`, that steps of one prompt are padded to; none if they are not padded."""
        if self._padded_size is None:
            return []
        padded = {size[0] for n in range(2, most + 1) if (size := self._padded_size(n, 0, 1)) is not None}
        return sorted(size for size in padded if size <= most)

    def calibrate(self, workload: Workload, seconds: float) -> None:
        """Take in a timing made on purpose; nothing follows from it before the next `fit`."""
        self._calibration.add(_learnt(self.features(workload, self._size(workload)), seconds), seconds)
        self._shortest_s = min(self._shortest_s, seconds)
        self._timings.append((workload, seconds))

    def observe(self, workload: Workload, seconds: float, *, is_decode: bool) -> None:
        """Learn from an iteration of the traffic: at once what its size takes, and every REFIT_EVERY iterations the
        coefficients anew."""
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
        """Fit the coefficients anew to all that was seen. What a size was seen to take stays: only how that changes
        with the rest of the workload follows the new coefficients."""
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
        """Seconds that the iteration is predicted to take; None before enough was seen to tell."""
        if self._coefficients is None:
            return None
        size = self._size(work)
        by_law = self._by_law(self.features(work, size))
        correction = self._correction(size)
        return by_law if correction is None else by_law * correction.ratio

    def features(self, workload: Workload, size: StepSize) -> tuple[float, ...]:
        """What each coefficient is multiplied by, in the order of FEATURES. size: as the step is padded."""
        num_tokens, num_decodes = (workload.num_tokens, workload.num_decodes) if size[1] == _UNPADDED else size
        past_knees = [max(0, num_tokens - knee) for knee in KNEES]
        _, num_pairs, num_read, longest_context, _, num_prompts, heat = workload
        return (1.0, num_tokens, *past_knees, num_decodes, num_pairs, num_read, longest_context, num_prompts, heat)

    def _by_law(self, features: tuple[float, ...]) -> float:
        """Linear but for the heat, which costs by the seconds that come out without it. No less than the shortest that
        was seen: of a kind that was hardly seen the coefficients may say 0."""
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
        """The size's own; else that of the one with the nearest number of decodes that is like it in all else."""
        if size in self._corrections:
            return self._corrections[size]
        alike = [seen for seen in self._corrections if _kind(seen) == _kind(size)]
        return self._corrections[min(alike, key=lambda seen: abs(seen[1] - size[1]))] if alike else None

    def _size(self, workload: Workload) -> StepSize:
        """As the executor pads it. What is not padded shares a correction with what is half to twice as large."""
        num_tokens, _, _, _, num_decodes, num_prompts, _ = workload
        if self._padded_size is None:
            return num_tokens, num_decodes
        return self._padded_size(num_tokens, num_decodes, num_prompts) or (1 << num_tokens.bit_length(), _UNPADDED)


def _kind(size: StepSize) -> tuple[int, bool, bool]:
    """As many tokens, that may all decode, or are not padded."""
    num_tokens, num_decodes = size
    return num_tokens, num_decodes == num_tokens, num_decodes == _UNPADDED


def _learnt(features: tuple[float, ...], seconds: float) -> tuple[float, ...]:
    """The features of what took so long, as the law is linear in them: seconds under heat for the heat."""
    return (*features[:-1], slowed_s(features[-1], seconds))


class _Correction:
    """What one size takes, measured by the law: a mean, of the last ones once there are enough. features: of the
    workload that was seen last."""

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
