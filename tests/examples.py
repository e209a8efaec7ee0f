"""How many examples a test looks at: few in `make test`, more with TEST_EXAMPLES=10 (ten times as many).

One law needs few examples each time and many now and then. Whatever draws, counts or crosses examples asks here for how
many, so that one variable of the environment makes all of them more, in every worker and process. Of a test's
parameters, markers say how many are looked at: `pairwise`, `each_once` and `some` (`Thinning`).
"""

from __future__ import annotations

import itertools
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

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


MARKERS = (
    "pairwise: of all combinations of its parameters so many that any two values of two parameters meet",
    "each_once: of all combinations of its parameters so many that each value is in one of them",
    "some(n): n of its parameters' combinations, other ones than of the next test",
)
"""What a test may be marked with. With TEST_EXAMPLES above 1, all combinations, or so many times n."""

_NUM_MEETING = {"pairwise": 2, "each_once": 1}
_ELSEWHERE = ("interpret", "load", "clients")


def thinned(items: Sequence[pytest.Item], factor: float = FACTOR) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Tests to run, and those left out by their markers; the same ones each time. Of a GPU's tests none."""
    groups: dict[object, list[pytest.Function]] = defaultdict(list)
    for item in items:
        is_one_of_many = isinstance(item, pytest.Function) and hasattr(item, "callspec")
        if is_one_of_many and not item.get_closest_marker("gpu"):
            where = tuple(name for name in _ELSEWHERE if item.get_closest_marker(name))
            groups[item.parent, item.originalname, where].append(item)
    left = {item for group in groups.values() for item in _left_out(group, factor)}
    return [item for item in items if item not in left], [item for item in items if item in left]


def _left_out(group: list[pytest.Function], factor: float) -> list[pytest.Function]:
    some = group[0].get_closest_marker("some")
    if some is not None:
        many, first = examples(some.args[0], factor), zlib.crc32(group[0].originalname.encode()) % len(group)
        kept = {(first + index * len(group) // many) % len(group) for index in range(many)}
        return [item for index, item in enumerate(group) if index not in kept]
    names = [name for name in _NUM_MEETING if group[0].get_closest_marker(name)]
    if not names or factor > 1:
        return []
    rows = [tuple(map(id, item.callspec.params.values())) for item in group]  # equal ones are the same object
    chosen = set(covering(rows, _NUM_MEETING[names[0]]))
    return [item for item, row in zip(group, rows, strict=True) if row not in chosen]


def covering(every: Sequence[tuple[int, ...]], num_meeting: int) -> list[tuple[int, ...]]:
    """Of the rows so many that any `num_meeting` values of as many columns that meet in a row do so in one of them.

    Greedy: each time a row in which most meet that have not met, and of these one whose values were taken least often.
    """
    num_meeting = min(num_meeting, len(every[0]))
    met_in = {row: set(itertools.combinations(enumerate(row), num_meeting)) for row in every}
    missing = set().union(*met_in.values())
    rows, taken = [], Counter[tuple[int, int]]()

    def gain(row: tuple[int, ...]) -> tuple[int, int]:
        return len(met_in[row] & missing), -sum(taken[value] for value in enumerate(row))

    while missing:
        row = max(every, key=gain)
        rows.append(row)
        missing -= met_in[row]
        taken.update(enumerate(row))
    return rows
