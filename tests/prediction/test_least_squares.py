from __future__ import annotations

import random

import pytest

from service.prediction.least_squares import Moments, fit_nonnegative


def observed(coefficients: list[float], count: int, seed: int = 0, keep: float = 1.0) -> Moments:
    chance = random.Random(seed)
    moments = Moments(len(coefficients), keep)
    for _ in range(count):
        features = [1.0] + [chance.uniform(1, 1000) ** power for power in range(1, len(coefficients))]
        moments.add(features, sum(c * f for c, f in zip(coefficients, features, strict=True)))
    return moments


def test_what_is_linear_is_found_whatever_the_scale_of_the_features():
    coefficients = [4e-3, 2e-5, 1e-9]
    assert fit_nonnegative([(observed(coefficients, 20), 1.0)]) == pytest.approx(coefficients, rel=1e-3)


def test_coefficients_are_never_negative():
    moments = Moments(2)
    for feature, target in ((1, 0.01), (100, 0.008), (1000, 0.005)):
        moments.add((1.0, feature), target)
    constant, slope = fit_nonnegative([(moments, 1.0)])
    assert slope == 0
    assert 0.005 < constant < 0.01


def test_the_newer_outweigh_the_older():
    moments = observed([1.0, 1.0], 50, keep=0.9)
    later = random.Random(1)
    for _ in range(200):
        feature = later.uniform(1, 1000)
        moments.add((1.0, feature), 2.0 + 3.0 * feature)
    assert fit_nonnegative([(moments, 1.0)]) == pytest.approx([2.0, 3.0], rel=0.01)


def test_several_sums_are_fitted_together():
    few, many = observed([1.0, 1.0], 5), observed([1.0, 3.0], 500, seed=2)
    between = fit_nonnegative([(few, 1.0), (many, 1.0)])[1]
    assert 2.8 < between < 3.0
    assert fit_nonnegative([(few, 1.0), (many, 0.0)]) == pytest.approx([1.0, 1.0], rel=1e-3)


def test_a_feature_that_never_varied_has_no_effect():
    moments = Moments(3)
    for feature in (1.0, 2.0, 3.0):
        moments.add((1.0, feature, 0.0), 5.0 + feature)
    assert fit_nonnegative([(moments, 1.0)]) == pytest.approx([5.0, 1.0, 0.0], rel=1e-3)


def test_of_two_that_would_be_negative_the_worse_is_left_out_first():
    moments = Moments(3)
    seen = [((1.0, 1.0, 3.0), 5.0), ((1.0, 1.0, 3.0), 7.0), ((1.0, 4.0, 1.0), 1.0), ((1.0, 1.0, 4.0), 4.0)]
    for features, target in seen:
        moments.add(features, target)
    fitted = fit_nonnegative([(moments, 1.0)])

    def error(coefficients: list[float]) -> float:
        return sum((sum(c * f for c, f in zip(coefficients, fs, strict=True)) / t - 1) ** 2 for fs, t in seen)

    grid = [0.25 * step for step in range(13)]
    assert min(fitted) >= 0
    assert error(fitted) <= min(error([a, b, c]) for a in grid for b in grid for c in grid)
