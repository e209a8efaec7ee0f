"""A straight line through samples, and how sure its slope is."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple


class Trend(NamedTuple):
    """slope: per unit of x. margin: half of its 95 % confidence interval; infinite with fewer than 4 samples."""

    slope: float
    margin: float

    @property
    def at_least(self) -> float:
        """The slope is no less than this, by the confidence of the margin."""
        return self.slope - self.margin


def line_through(xs: Sequence[float], ys: Sequence[float]) -> Trend:
    """Least squares. The margin takes the samples' deviations from the line as independent of each other."""
    count = len(xs)
    if count < 4 or count != len(ys):
        return Trend(0.0, math.inf)
    mean_x, mean_y = sum(xs) / count, sum(ys) / count
    spread = sum((x - mean_x) ** 2 for x in xs)
    if not spread:
        return Trend(0.0, math.inf)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    squares = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in zip(xs, ys, strict=True))
    return Trend(slope, _student_t(count - 2) * math.sqrt(squares / (count - 2) / spread))


def _student_t(freedom: int) -> float:
    """Student's t at 97.5 %, by its expansion around the normal distribution: 1 % low at 4 degrees of freedom."""
    if freedom < 4:
        return {2: 4.303, 3: 3.182}[freedom]
    z = NormalDist().inv_cdf(0.975)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2
