"""Blocks side by side, where that costs least."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate


def cheapest_run(costs: Sequence[int | None], length: int) -> int | None:
    """The first of `length` neighbours whose costs add up to the least; of equal ones the first. None in `costs` is a
    place that cannot be had. None if no run is free of those. One pass. length: >= 1."""
    if length > len(costs):
        return None
    prohibitive = 1 + sum(cost for cost in costs if cost is not None)
    sums = [0, *accumulate(prohibitive if cost is None else cost for cost in costs)]
    least, first = min(
        (end - start, place) for place, (start, end) in enumerate(zip(sums, sums[length:], strict=False))
    )
    return first if least < prohibitive else None
