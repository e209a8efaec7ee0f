import math
from statistics import NormalDist

import numpy as np
import pytest

from loadtest.lengths import Fixed, Lognormal, Uniform
from loadtest.random_streams import random_stream


def test_uniform_reaches_both_ends_and_has_their_mean() -> None:
    drawn = Uniform(32, 512).draw(50_000, random_stream(0, "x"))
    assert (drawn.min(), drawn.max()) == (32, 512)
    assert drawn.mean() == pytest.approx(272, rel=0.01)


@pytest.mark.parametrize(
    "law", [Lognormal(161.31, 1.5, 4, 1024), Lognormal(337.99, 1.0, 4, 1024), Lognormal(19.31, 0.7, 4, 256)]
)
def test_lognormal_keeps_its_bounds_and_its_clipped_mean(law: Lognormal) -> None:
    drawn = law.draw(200_000, random_stream(0, "x"))
    assert drawn.min() >= law.low
    assert drawn.max() <= law.high
    assert drawn.mean() == pytest.approx(_clipped_mean(law), rel=0.01)
    assert drawn.mean() == pytest.approx(law.mean, rel=0.1)


def _clipped_mean(law: Lognormal) -> float:
    """By the formula; rounding left out."""
    logarithm, shifted = NormalDist(law.mu, law.sigma), NormalDist(law.mu + law.sigma**2, law.sigma)
    low, high = math.log(law.low), math.log(law.high)
    inside = shifted.cdf(high) - shifted.cdf(low)
    return law.low * logarithm.cdf(low) + law.mean * inside + law.high * (1 - logarithm.cdf(high))


def test_lognormal_without_clipping_has_its_mean_and_spread() -> None:
    law = Lognormal(1000.0, 0.5, 1, 10**9)
    drawn = law.draw(200_000, random_stream(0, "x"))
    assert drawn.mean() == pytest.approx(1000.0, rel=0.01)
    assert drawn.std() / drawn.mean() == pytest.approx(0.5, rel=0.02)


def test_fixed() -> None:
    assert np.unique(Fixed(7).draw(5, random_stream(0, "x"))).tolist() == [7]
