"""How long blocks take to the host and back, predicted (AdaptiveLLM, section 3.3).

The paper divides bytes by a bandwidth. Blocks of one process are equally large, so that is a time for each block; the
time to begin comes on top, and more of it for the first transfer of a plan: the others are launched while it runs. All
are fitted each way to transfers measured at start-up, and refreshed while running.
"""

from __future__ import annotations

from operator import mul
from typing import NamedTuple

from service.prediction.least_squares import Moments, fit_nonnegative

KEEP = 1 - 1 / 32
REFIT_EVERY = 4
CALIBRATION_WEIGHT = 0.1
"""Timings of the start-up are never forgotten: they know numbers of blocks that traffic may not have."""


class Copies(NamedTuple):
    """Of one transfer. is_first: of its plan (`FinishedTransfer`)."""

    to_host: bool
    num_blocks: int
    is_first: bool = True


class SwapTime:
    """Predicts the copies of a transfer from those that were observed, by the device's clock where it has one. Engine
    thread only. Knows a way once it has been observed.

    added_share: of a transfer's seconds, those by which the iteration that it runs beside takes longer; measured at
    start-up, 1 before.
    """

    def __init__(self) -> None:
        self._ways = {True: _OneWay(), False: _OneWay()}
        self.added_share = 1.0

    def calibrate(self, copies: Copies, seconds: float) -> None:
        """Learn from a transfer that was timed on purpose."""
        self._ways[copies.to_host].calibrate(copies, seconds)

    def observe(self, copies: Copies, seconds: float) -> None:
        """Learn from a transfer of the traffic. The first few count at once, later ones when the coefficients are
        fitted anew, every REFIT_EVERY of a way."""
        self._ways[copies.to_host].observe(copies, seconds)

    def predicted_s(self, work: Copies) -> float | None:
        """Seconds that the copies are predicted to take; None before enough was seen to tell."""
        return self._ways[work.to_host].predicted_s(work)

    def there_and_back_s(self, num_blocks: int) -> float | None:
        """Both ways, each the first transfer of its plan."""
        ways = [self.predicted_s(Copies(to_host, num_blocks)) for to_host in (True, False)]
        return None if None in ways else sum(seconds or 0.0 for seconds in ways)


class _OneWay:
    """One direction: seconds to begin, more of them for the first transfer of a plan, and seconds a block."""

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
