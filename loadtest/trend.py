"""Fits a straight line to samples over time, with the confidence of its slope."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

_CONFIDENCE = 0.999
_T_OF_FEW = {1: 636.6, 2: 31.6, 3: 12.92, 4: 8.61, 5: 6.87, 6: 5.96, 7: 5.41}
"""Student's t for 99.9 % by degrees of freedom, where `_student_t`'s expansion is too inaccurate."""


class Trend(NamedTuple):
    """slope: per unit of x. margin: half the slope's 99.9 % confidence interval; infinite with fewer than 4 samples."""

    slope: float
    margin: float

    @property
    def at_least(self) -> float:
        """The lower end of the slope's confidence interval."""
        return self.slope - self.margin


def line_through(xs: Sequence[float], ys: Sequence[float]) -> Trend:
    """Least-squares fit. The samples must be in order of time.

    The more a residual resembles the one before it, the less each sample says. Memory grows in steps, whenever a new
    peak is needed, and stays there: a few such steps are no leak, although a line through them is as steep as one. So
    the effective number of samples is n (1 - r) / (1 + r), r being the residuals' lag-1 autocorrelation
    (Santer et al., 2000, for temperature trends).
    """
    count = len(xs)
    if count < 4 or count != len(ys):
        return Trend(0.0, math.inf)
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    spread = sum((x - mean_x) ** 2 for x in xs)
    if not spread:
        return Trend(0.0, math.inf)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    deviations = [y - mean_y - slope * (x - mean_x) for x, y in zip(xs, ys, strict=True)]
    squares = sum(each * each for each in deviations)
    if not squares:
        return Trend(slope, 0.0)
    resemblance = max(0.0, sum(a * b for a, b in pairwise(deviations)) / squares)
    freedom = max(1.0, count * (1 - resemblance) / (1 + resemblance) - 2)
    return Trend(slope, _student_t(freedom) * math.sqrt(squares / freedom / spread))


def _student_t(freedom: float) -> float:
    """Expansion around the normal distribution; 3 % too low at 8 degrees of freedom."""
    if freedom < 8:
        return _T_OF_FEW[int(freedom)]
    z = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
