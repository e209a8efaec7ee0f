"""Length distributions, in tokens."""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class LengthDistribution(Protocol):
    """Draws numbers of tokens."""

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """`count` lengths, each at least 1."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always `tokens`."""

    tokens: int

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """See `LengthDistribution`. Does not use `rng`."""
        return np.full(count, self.tokens, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every whole number from `low` to `high`, both included."""

    low: int
    high: int

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """See `LengthDistribution`."""
        return rng.integers(self.low, self.high, count, endpoint=True)


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Lognormal with this mean and coefficient of variation, rounded, then clipped to `low`..`high`.

    `mean` is the mean before clipping.
    """

    mean: float
    cv: float
    low: int
    high: int

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return math.sqrt(math.log1p(self.cv**2))

    @property
    def mu(self) -> float:
        """Mean of the logarithm."""
        return math.log(self.mean) - self.sigma**2 / 2

    def draw(self, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """See `LengthDistribution`."""
        drawn = np.rint(rng.lognormal(self.mu, self.sigma, count))
        return np.clip(drawn, self.low, self.high).astype(np.int64)
