import pytest

from loadtest.baselines.regressors import DEGREES, REGRESSORS, Split
from service.prediction.workload import Workload


def timings(scale: float) -> list[tuple[Workload, float]]:
    """A quadratic law of tokens and sequences."""
    works = [Workload.of_chunk(0, tokens, decodes, 16 * decodes) for tokens in range(8, 200, 8) for decodes in range(5)]
    return [(work, scale * (1e-3 + 1e-5 * work.num_tokens + 2e-8 * work.num_tokens**2)) for work in works]


@pytest.fixture(scope="module")
def split() -> Split:
    return Split.of({"a": timings(1.0), "b": timings(1.0)})


def test_a_fifth_of_each_workload_is_held_out(split: Split) -> None:
    assert {name: len(held) for name, held in split.held_out.items()} == {"a": 24, "b": 24}
    assert len(split.fitted) == 2 * 96


def test_polynomials_of_the_laws_degree_find_it(split: Split) -> None:
    linear = REGRESSORS["linear"]
    assert all(error > 0.1 for error in split.regressor_errors(linear, 1).values())
    assert all(error < 1e-6 for error in split.regressor_errors(linear, 2).values())


def test_every_regressor_predicts_and_the_mean_is_over_all_that_is_held_out(split: Split) -> None:
    for make in REGRESSORS.values():
        errors = split.regressor_errors(make, DEGREES[0])
        assert split.mean_error(errors) == pytest.approx((errors["a"] + errors["b"]) / 2)
    assert split.mean_error(split.predictor_errors(None)) < 5
