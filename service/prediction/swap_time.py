"""How long blocks take to the host and back, predicted (AdaptiveLLM, section 3.3).

The paper divides bytes by bandwidth. All blocks of a process have the same size, so that is a time per block. On top
comes a constant per transfer, and another one for the first transfer of a plan, since later ones are launched while it
runs. All are fitted per direction to transfers timed at start-up, and refitted while serving.
"""

from __future__ import annotations

from operator import mul
from typing import NamedTuple

from service.prediction.least_squares import Moments, fit_nonnegative

KEEP = 1 - 1 / 32
REFIT_EVERY = 4
CALIBRATION_WEIGHT = 0.1
"""Weight of start-up timings, which are never forgotten: they cover numbers of blocks that traffic may lack."""


class Copies(NamedTuple):
    """One transfer's copies. is_first: see `FinishedTransfer`."""

    to_host: bool
    num_blocks: int
    is_first: bool = True


class SwapTime:
    """Predicts the seconds of a transfer's copies from observed ones, by the device's clock if it has one. Engine
    thread only. A direction is unknown until it was observed once.

    added_share: the share of a transfer's seconds by which the iteration beside it takes longer; measured at start-up,
    1 before that.
    """

    def __init__(self) -> None:
        self._ways = {True: _OneWay(), False: _OneWay()}
        self.added_share = 1.0

    def calibrate(self, copies: Copies, seconds: float) -> None:
        """Learn from a transfer timed at start-up."""
        self._ways[copies.to_host].calibrate(copies, seconds)

    def observe(self, copies: Copies, seconds: float) -> None:
        """Learn from a transfer of the traffic. Refits at once for the first few of a direction, later every
        REFIT_EVERY transfers."""
        self._ways[copies.to_host].observe(copies, seconds)

    def predicted_s(self, work: Copies) -> float | None:
        """Predicted seconds of the copies; None before enough was observed."""
        return self._ways[work.to_host].predicted_s(work)

    def there_and_back_s(self, num_blocks: int) -> float | None:
        """Both directions, each as the first transfer of its plan."""
        ways = [self.predicted_s(Copies(to_host, num_blocks)) for to_host in (True, False)]
        return None if None in ways else sum(seconds or 0.0 for seconds in ways)


class _OneWay:
    """One direction: seconds per transfer, more seconds for the first of a plan, and seconds per block."""

    def __init__(self) -> None:
        self._calibration = Moments(3)
        self._traffic = Moments(3, KEEP)
        self._coefficients: list[float] | None = None

    def calibrate(self, copies: Copies, seconds: float) -> None:
        self._calibration.add(_features(copies), max(seconds, 1e-9))
        self._fit()

    def observe(self, copies: Copies, seconds: float) -> None:
        self._traffic.add(_features(copies), max(seconds, 1e-9))
        num_observed = self._traffic.num_observed
        if num_observed < REFIT_EVERY or num_observed % REFIT_EVERY == 0:
            self._fit()

    def _fit(self) -> None:
        self._coefficients = fit_nonnegative([(self._calibration, CALIBRATION_WEIGHT), (self._traffic, 1.0)])

    def predicted_s(self, copies: Copies) -> float | None:
        return None if self._coefficients is None else sum(map(mul, self._coefficients, _features(copies)))


def _features(copies: Copies) -> tuple[float, float, float]:
    return 1.0, float(copies.is_first), float(copies.num_blocks)
