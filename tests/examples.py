"""How many examples a test looks at: few in `make test`, more with TEST_EXAMPLES=10 (ten times as many).

One law needs few examples each time and many now and then. Whatever draws, counts or crosses examples asks here for how
many, so that one variable of the environment makes all of them more, in every worker and process.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

Case = TypeVar("Case")

FACTOR = float(os.environ.get("TEST_EXAMPLES", "1"))


def examples(usual: int, factor: float = FACTOR) -> int:
    """`usual`, times TEST_EXAMPLES; at least one."""
    return max(1, round(usual * factor))


def spread(cases: Iterable[Case], usual: int, factor: float = FACTOR) -> list[Case]:
    """As many as `examples(usual)`, or all if there are fewer: the first, the last, and evenly between them."""
    every, many = list(cases), examples(usual, factor)
    if many >= len(every):
        return every
    if many == 1:
        return every[:1]
    return [every[index * (len(every) - 1) // (many - 1)] for index in range(many)]


def pairwise(*axes: Iterable[Any], factor: float = FACTOR) -> list[tuple[Any, ...]]:
    """Rows of one value of each axis, in which any two values of two axes meet.

    With a factor above 1, all rows that there are. The same rows each time. Three axes of 4, 3 and 2 values are 12 rows
    instead of 24; four of 4 are 16 to 20 for 256.
    """
    return _rows(axes, 2, factor)


def each_once(*axes: Iterable[Any], factor: float = FACTOR) -> list[tuple[Any, ...]]:
    """Like `pairwise`, but each value is in some row, whatever it meets there: as many rows as the longest axis has."""
    return _rows(axes, 1, factor)


def _rows(axes: Sequence[Iterable[Any]], num_meeting: int, factor: float) -> list[tuple[Any, ...]]:
    values = [list(axis) for axis in axes]
    every = list(itertools.product(*[range(len(axis)) for axis in values]))
    rows = every if factor > 1 else _covering(every, min(num_meeting, len(values)))
    return [tuple(axis[index] for axis, index in zip(values, row, strict=True)) for row in rows]


def _covering(every: list[tuple[int, ...]], num_meeting: int) -> list[tuple[int, ...]]:
    """Greedy: each time the row, the first of them, in which most meet that have not met."""
    met_in = {row: set(itertools.combinations(enumerate(row), num_meeting)) for row in every}
    missing = set().union(*met_in.values())
    rows = []
    while missing:
        row = max(every, key=lambda row: len(met_in[row] & missing))
        rows.append(row)
        missing -= met_in[row]
    return sorted(rows)
