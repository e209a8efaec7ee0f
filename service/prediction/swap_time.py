"""How long blocks take to the host and back, predicted (AdaptiveLLM, section 3.3).

The paper divides bytes by a bandwidth. Blocks of one process are equally large, so that is a time for each block; the
time to begin comes on top, and more of it for the first transfer of a plan: the others are launched while it runs. All
are fitted each way to transfers measured at start-up, and refreshed while running.

These are times of the copies themselves, by the device's clock where it has one. The host prepares and launches them
while the device computes, so that costs nobody's time.
"""

from __future__ import annotations

from service.prediction.least_squares import Moments, fit_nonnegative

KEEP = 1 - 1 / 32
REFIT_EVERY = 4
CALIBRATION_WEIGHT = 0.1
"""Timings of the start-up are never forgotten: they know numbers of blocks that traffic may not have."""


class SwapTime:
    """Predicts transfers of so many blocks from those that were observed. Engine thread only. Knows nothing until each
    way has been observed at least once."""

    def __init__(self) -> None:
        self._copies = {True: _OneWay(), False: _OneWay()}

    @property
    def is_known(self) -> bool:
        """Whether both ways have been observed, so that `seconds` can tell."""
        return all(copies.is_known for copies in self._copies.values())

    def calibrate(self, to_host: bool, num_blocks: int, seconds: float, is_first: bool) -> None:
        """Learn from a transfer that was timed on purpose."""
        self._copies[to_host].calibrate(num_blocks, is_first, seconds)

    def observe(self, to_host: bool, num_blocks: int, seconds: float, is_first: bool) -> None:
        """Learn from a transfer of the traffic. The first few count at once, later ones when the coefficients are
        fitted anew, every REFIT_EVERY of a way."""
        self._copies[to_host].observe(num_blocks, is_first, seconds)

    def one_way_s(self, *, to_host: bool, num_blocks: int, is_first: bool) -> float | None:
        """Predicted seconds of one transfer's copy; None before this way is known."""
        return self._copies[to_host].seconds(num_blocks, is_first)

    def seconds(self, num_blocks: int) -> float:
        """Predicted seconds out and back in, each the first transfer of its plan; only once `is_known`."""
        return sum(copies.seconds(num_blocks, is_first=True) or 0.0 for copies in self._copies.values())


class _OneWay:
    """One direction: seconds to begin, more of them for the first transfer of a plan, and seconds a block."""

    def __init__(self) -> None:
        self._calibration = Moments(3)
        self._traffic = Moments(3, KEEP)
        self._coefficients: list[float] | None = None

    @property
    def is_known(self) -> bool:
        return self._coefficients is not None

    def calibrate(self, num_blocks: int, is_first: bool, seconds: float) -> None:
        self._calibration.add((1.0, float(is_first), float(num_blocks)), max(seconds, 1e-9))
        self._fit()

    def observe(self, num_blocks: int, is_first: bool, seconds: float) -> None:
        self._traffic.add((1.0, float(is_first), float(num_blocks)), max(seconds, 1e-9))
        num_observed = self._traffic.num_observed
        if num_observed < REFIT_EVERY or num_observed % REFIT_EVERY == 0:
            self._fit()

    def _fit(self) -> None:
        self._coefficients = fit_nonnegative([(self._calibration, CALIBRATION_WEIGHT), (self._traffic, 1.0)])

    def seconds(self, num_blocks: int, is_first: bool) -> float | None:
        if self._coefficients is None:
            return None
        to_begin, if_first, per_block = self._coefficients
        return to_begin + if_first * is_first + per_block * num_blocks
