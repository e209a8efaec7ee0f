"""The eight regressors that AdaptiveLLM tries for iteration times (section 3.2, tables 5 and 6), from scikit-learn.

Inputs are polynomials, up to a given degree, of what the paper's predictor knows of an iteration: its tokens and its
sequences. It also knows layers and hidden size, but these are constants of a model.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import ElasticNet, Lasso, LinearRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.tree import DecisionTreeRegressor

from loadtest.baselines.preemption_judge import Timing
from service.prediction.iteration_time import IterationTime, PaddedSize
from service.prediction.workload import Workload

DEGREES = (1, 2, 3, 4, 5)
_SEED = 0
_MS = 1e3
"""Milliseconds are fitted, and the unit matters: the penalties of lasso, ridge and elastic net depend on it."""

REGRESSORS: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        "linear": LinearRegression,
        "decision tree": lambda: DecisionTreeRegressor(random_state=_SEED),
        "random forest": lambda: RandomForestRegressor(random_state=_SEED),
        "ridge": Ridge,
        "lasso": Lasso,
        "elastic net": ElasticNet,
        "gradient boosting": lambda: GradientBoostingRegressor(random_state=_SEED),
        "k nearest neighbours": KNeighborsRegressor,
    }
)


@dataclass(frozen=True, slots=True)
class Split:
    """The paper's test (section 4.5): a random four fifths of all timings to fit, the others, by workload, to
    predict."""

    fitted: Sequence[Timing]
    held_out: Mapping[str, Sequence[Timing]]

    @classmethod
    def of(cls, timings: Mapping[str, Sequence[Timing]]) -> Split:
        """timings: by workload."""
        chance = random.Random(_SEED)
        fitted: list[Timing] = []
        held_out: dict[str, Sequence[Timing]] = {}
        for name, of_workload in timings.items():
            shuffled = chance.sample(of_workload, len(of_workload))
            num_fitted = len(shuffled) * 4 // 5
            fitted += shuffled[:num_fitted]
            held_out[name] = shuffled[num_fitted:]
        return cls(fitted, held_out)

    def regressor_errors(self, make: Callable[[], Any], degree: int) -> dict[str, float]:
        """Mean absolute error by workload, in percent of the measured time."""
        model = make_pipeline(PolynomialFeatures(degree), StandardScaler(), make())
        model.fit(_inputs(self.fitted), _seconds(self.fitted) * _MS)
        return {
            name: float(100 * np.mean(np.abs(model.predict(_inputs(timings)) / _MS / _seconds(timings) - 1)))
            for name, timings in self.held_out.items()
        }

    def predictor_errors(self, padded_size: PaddedSize | None) -> dict[str, float]:
        """The same for the service's own predictor."""
        predictor = IterationTime(padded_size)
        for work, seconds in self.fitted:
            predictor.calibrate(work, seconds)
        predictor.fit()
        return {
            name: 100 * fmean(abs((predictor.predicted_s(work) or 0.0) / seconds - 1) for work, seconds in timings)
            for name, timings in self.held_out.items()
        }

    def mean_error(self, errors: Mapping[str, float]) -> float:
        """The mean over all timings that were held out."""
        counts = {name: len(timings) for name, timings in self.held_out.items()}
        return sum(errors[name] * count for name, count in counts.items()) / sum(counts.values())


def _inputs(timings: Sequence[Timing]) -> np.ndarray:
    return np.array([_known(work) for work, _ in timings], dtype=float)


def _known(work: Workload) -> tuple[int, int]:
    return work.num_tokens, work.num_decodes + work.num_prompts


def _seconds(timings: Sequence[Timing]) -> np.ndarray:
    return np.array([seconds for _, seconds in timings])
