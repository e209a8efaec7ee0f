from collections.abc import Callable

import pytest

from loadtest import measurements
from loadtest.measurements import Measurements


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> list[float | None]:
    """What others are seen to use, measurement by measurement."""
    shares: list[float | None] = []

    def measured(side: Callable[[], float]) -> tuple[float, float | None]:
        return side(), shares.pop(0)

    monkeypatch.setattr(measurements, "wait_until_free", lambda share, patience_s: None)
    monkeypatch.setattr(measurements, "share_of_others_during", measured)
    return shares


def test_the_median_of_the_rounds_counts(others: list[float | None]) -> None:
    others += [0.0] * 4
    measured = Measurements()
    for rate in (1.0, 5.0, 3.0):
        measured.take("a", lambda rate=rate: rate)
    measured.take("b", lambda: 7.0)
    assert measured.medians == {"a": 3.0, "b": 7.0}
    assert measured.first_rate("a") == 1.0


def test_a_disturbed_one_is_repeated_and_the_least_disturbed_one_counts(others: list[float | None]) -> None:
    others += [0.5, 0.2, 0.4, 0.3, 0.01]
    rates = iter([1.0, 2.0, 3.0, 4.0, 5.0])
    measured = Measurements(max_tries=3)
    measured.take("a", lambda: next(rates))
    measured.take("b", lambda: next(rates))
    assert measured.medians == {"a": 2.0, "b": 5.0}
    assert measured.greatest_share_of_others == 0.2


def test_where_nobody_knows_what_others_use_one_measurement_is_enough(others: list[float | None]) -> None:
    others += [None]
    measured = Measurements(max_tries=3)
    measured.take("a", lambda: 1.0)
    assert measured.medians == {"a": 1.0}
    assert measured.greatest_share_of_others is None
