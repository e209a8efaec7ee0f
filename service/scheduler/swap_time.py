"""How long blocks take to the host and back, predicted (AdaptiveLLM, section 3.1.2).

The paper divides bytes by a bandwidth. Blocks of one process are equally large, so that is a time for each block; the
time to begin comes on top. Both are fitted each way to transfers measured at start-up, and refreshed while running.

These are times of the copies themselves. Who waits for one also waits until it is launched and its end is noticed:
a constant each way, measured at start-up.
"""

from __future__ import annotations

from service.scheduler.least_squares import Moments, fit_nonnegative

KEEP = 1 - 1 / 128
REFIT_EVERY = 8


class SwapTime:
    """Engine thread only. Knows nothing until each way has been observed at least once."""

    def __init__(self) -> None:
        self._ways = {True: _OneWay(), False: _OneWay()}

    @property
    def is_known(self) -> bool:
        return all(way.is_known for way in self._ways.values())

    def observe(self, *, to_host: bool, num_blocks: int, seconds: float) -> None:
        self._ways[to_host].observe(num_blocks, seconds)

    def observe_launch(self, *, to_host: bool, seconds: float) -> None:
        """What one transfer took on the host, beside the copy."""
        self._ways[to_host].observe_launch(seconds)

    def one_way_s(self, *, to_host: bool, num_blocks: int) -> float | None:
        """Predicted seconds of one transfer's copy; None before this way is known."""
        return self._ways[to_host].seconds(num_blocks)

    def seconds(self, num_blocks: int) -> float:
        """Predicted seconds out and back in, for who waits for both; only once `is_known`."""
        return sum((way.seconds(num_blocks) or 0.0) + way.launch_s for way in self._ways.values())


class _OneWay:
    def __init__(self) -> None:
        self._moments = Moments(2, KEEP)
        self._coefficients: list[float] | None = None
        self._num_launches = 0
        self.launch_s = 0.0

    @property
    def is_known(self) -> bool:
        return self._coefficients is not None

    def observe(self, num_blocks: int, seconds: float) -> None:
        self._moments.add((1.0, float(num_blocks)), max(seconds, 1e-9))
        num_observed = self._moments.num_observed
        if num_observed < REFIT_EVERY or num_observed % REFIT_EVERY == 0:  # start-up takes few timings: each counts
            self._coefficients = fit_nonnegative([(self._moments, 1.0)])

    def observe_launch(self, seconds: float) -> None:
        self._num_launches += 1
        self.launch_s += (seconds - self.launch_s) / self._num_launches

    def seconds(self, num_blocks: int) -> float | None:
        if self._coefficients is None:
            return None
        per_transfer, per_block = self._coefficients
        return per_transfer + per_block * num_blocks
