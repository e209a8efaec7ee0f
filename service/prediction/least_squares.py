"""Least squares of few features, refreshed with every observation: sums are kept, observations are not."""

from __future__ import annotations

from collections.abc import Sequence

_RIDGE = 1e-9
"""Relative; keeps features that were never told apart from making the system singular."""


class Moments:
    """Sums of products over observations of positive targets, each weighted by 1/target: errors count relatively.

    keep: what an observation leaves of the weight of those before it. 1 forgets nothing.
    """

    def __init__(self, num_features: int, keep: float = 1.0) -> None:
        self.num_features = num_features
        self.num_observed = 0
        self._keep = keep
        self.rows = [[0.0] * (num_features + 1) for _ in range(num_features)]

    def add(self, features: Sequence[float], target: float) -> None:
        """An observation: num_features values, and what they came to, above 0."""
        self.num_observed += 1
        scaled = [feature / target for feature in features]
        scaled.append(1.0)
        keep = self._keep
        for row, factor in zip(self.rows, scaled, strict=False):
            for column, value in enumerate(scaled):
                row[column] = row[column] * keep + factor * value


def fit_nonnegative(moments: Sequence[tuple[Moments, float]]) -> list[float]:
    """Coefficients >= 0 of least relative error over several sums, each with its weight.

    A feature that would get less than 0 is left out: the worst one first, then again.
    """
    num_features = moments[0][0].num_features
    rows = [
        [sum(weight * m.rows[i][j] for m, weight in moments) for j in range(num_features + 1)]
        for i in range(num_features)
    ]
    active = [i for i in range(num_features) if rows[i][i] > 0]
    while True:
        solution = _solve(rows, active)
        scale = {i: rows[i][i] ** 0.5 for i in active}
        negative = [i for i in active if solution[i] < 0]
        if not negative:
            return solution
        active.remove(min(negative, key=lambda i: solution[i] * scale[i]))


def _solve(rows: Sequence[Sequence[float]], active: Sequence[int]) -> list[float]:
    """Normal equations of the active features by elimination, each feature scaled to one."""
    num_features = len(rows)
    scale = [rows[i][i] ** 0.5 for i in active]
    system = [
        [rows[i][j] / (scale[a] * scale[b]) + (_RIDGE if a == b else 0.0) for b, j in enumerate(active)]
        + [rows[i][num_features] / scale[a]]
        for a, i in enumerate(active)
    ]
    size = len(active)
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(system[row][i]))
        system[i], system[pivot] = system[pivot], system[i]
        for row in range(size):
            if row != i:
                factor = system[row][i] / system[i][i]
                system[row] = [a - factor * b for a, b in zip(system[row], system[i], strict=True)]
    solution = [0.0] * num_features
    for a, i in enumerate(active):
        solution[i] = system[a][size] / system[a][a] / scale[a]
    return solution
