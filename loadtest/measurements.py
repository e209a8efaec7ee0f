"""Rates of several systems on a shared machine: measured when it is idle, and again if it was not."""

import statistics
import sys
from collections.abc import Callable

from loadtest.machine_load import share_of_others_during, wait_until_free

_FREE_SHARE = 0.05


class Measurements:
    """Rates by side, one per round, measured while the machine did little else."""

    def __init__(self, patience_s: float = 0.0, max_tries: int = 1) -> None:
        """patience_s: how long to wait before each measurement for other work to end. max_tries: a measurement
        during which others used too much of the machine is repeated, up to this many tries; the least disturbed
        one counts.
        """
        self._patience_s = patience_s
        self._max_tries = max_tries
        self._rates: dict[str, list[float]] = {}
        self._others: list[float] = []

    @property
    def medians(self) -> dict[str, float]:
        """Median output tokens per second, by side."""
        return {name: statistics.median(rates) for name, rates in self._rates.items()}

    @property
    def greatest_share_of_others(self) -> float | None:
        """The greatest share of the cores' time that other processes used during a measurement that counts."""
        return max(self._others, default=None)

    def first_rate(self, name: str) -> float:
        """The side's rate in the first round."""
        return self._rates[name][0]

    def take(self, name: str, side: Callable[[], float]) -> None:
        """Measure one side once."""
        tries: list[tuple[float, float | None]] = []
        for _ in range(self._max_tries):
            wait_until_free(_FREE_SHARE, self._patience_s)
            rate, others = share_of_others_during(side)
            tries.append((rate, others))
            shown = "unknown" if others is None else f"{others:.0%}"
            print(f"{name}: {rate:.1f} tokens/s (others used {shown})", file=sys.stderr, flush=True)
            if others is None or others <= _FREE_SHARE:
                break
        rate, others = min(tries, key=lambda taken: taken[1] or 0.0)
        self._rates.setdefault(name, []).append(rate)
        if others is not None:
            self._others.append(others)
