"""Least squares with few features. Only sums are kept, so that adding an observation is cheap."""

from __future__ import annotations

from collections.abc import Sequence

_RIDGE = 1e-9
"""Relative. Keeps the system regular if some features always occur together."""


class Moments:
    """Sums of products over observations with positive targets. Each is weighted by 1/target, so errors are relative.

    keep: factor on all earlier weights with each new observation; 1 forgets nothing.
    """

    def __init__(self, num_features: int, keep: float = 1.0) -> None:
        self.num_features = num_features
        self.num_observed = 0
        self._keep = keep
        self.rows = [[0.0] * (num_features + 1) for _ in range(num_features)]

    def add(self, features: Sequence[float], target: float) -> None:
        """Add an observation: num_features values, and their target > 0."""
        self.num_observed += 1
        scaled = [feature / target for feature in features]
        scaled.append(1.0)
        keep = self._keep
        for row, factor in zip(self.rows, scaled, strict=False):
            for column, value in enumerate(scaled):
                row[column] = row[column] * keep + factor * value


def fit_nonnegative(moments: Sequence[tuple[Moments, float]]) -> list[float]:
    """Coefficients >= 0 with the least relative error over several sums, each with its weight.

    While some coefficient would be negative, the worst such feature is left out, and the rest is fitted again.
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
    """Solve the normal equations of the active features by elimination, each feature scaled to norm one."""
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
