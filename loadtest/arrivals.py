"""Arrival processes: when, in seconds after the start of a run, each request is due.

Open loop: the times are fixed before the run and do not depend on the server. A closed loop has no arrival process:
a request is due when one of `concurrency` clients becomes free (runner.py).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class ArrivalProcess(Protocol):
    """Says when requests arrive."""

    def arrival_times(self, num_requests: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Ascending seconds after the start, the first at 0, shape [num_requests]."""
        ...


@dataclass(frozen=True, slots=True)
class GammaArrivals:
    """Gaps follow a gamma distribution with mean 1 / request_rate and squared coefficient of variation 1 / burstiness.

    burstiness: 1 is Poisson; below 1, requests come in bursts.
    """

    request_rate: float
    burstiness: float

    def __post_init__(self) -> None:
        _check_rate(self.request_rate)
        if self.burstiness <= 0:
            raise ValueError(f"burstiness must be above 0, not {self.burstiness}")

    def arrival_times(self, num_requests: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """See `ArrivalProcess`."""
        scale = 1.0 / (self.request_rate * self.burstiness)
        return _from_gaps(rng.gamma(self.burstiness, scale, max(num_requests - 1, 0)), num_requests)


@dataclass(frozen=True, slots=True)
class PoissonArrivals:
    """Exponential gaps with mean 1 / request_rate: independent users, as in the papers."""

    request_rate: float

    def __post_init__(self) -> None:
        _check_rate(self.request_rate)

    def arrival_times(self, num_requests: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """See `ArrivalProcess`."""
        return _from_gaps(rng.exponential(1.0 / self.request_rate, max(num_requests - 1, 0)), num_requests)


@dataclass(frozen=True, slots=True)
class ConstantArrivals:
    """One request every 1 / request_rate seconds."""

    request_rate: float

    def __post_init__(self) -> None:
        _check_rate(self.request_rate)

    def arrival_times(self, num_requests: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """See `ArrivalProcess`. Does not use `rng`."""
        return np.arange(num_requests, dtype=np.float64) / self.request_rate


@dataclass(frozen=True, slots=True)
class AllAtOnce:
    """Every request at 0: measures throughput with a full queue."""

    def arrival_times(self, num_requests: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """See `ArrivalProcess`. Does not use `rng`."""
        return np.zeros(num_requests, dtype=np.float64)


def _check_rate(request_rate: float) -> None:
    if not 0 < request_rate < float("inf"):
        raise ValueError(f"request rate must be a finite number above 0, not {request_rate}")


def _from_gaps(gaps: NDArray[np.float64], num_requests: int) -> NDArray[np.float64]:
    times = np.zeros(num_requests, dtype=np.float64)
    np.cumsum(gaps, out=times[1:])
    return times
