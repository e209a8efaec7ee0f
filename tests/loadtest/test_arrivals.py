import numpy as np
import pytest

from loadtest.arrivals import AllAtOnce, ArrivalProcess, ConstantArrivals, GammaArrivals, PoissonArrivals
from loadtest.random_streams import random_stream

NUM = 20_000


def _gaps(process: ArrivalProcess) -> np.ndarray:
    return np.diff(process.arrival_times(NUM, random_stream(0, "arrivals")))


def test_poisson_gaps_have_mean_and_deviation_of_the_exponential_law() -> None:
    gaps = _gaps(PoissonArrivals(5.0))
    assert gaps.mean() == pytest.approx(0.2, rel=0.03)
    assert gaps.std() == pytest.approx(0.2, rel=0.03)


def test_poisson_counts_have_equal_mean_and_variance() -> None:
    times = PoissonArrivals(5.0).arrival_times(NUM, random_stream(0, "arrivals"))
    counts = np.bincount(times[times < 3900].astype(int))
    assert counts.mean() == pytest.approx(5.0, rel=0.03)
    assert counts.var() == pytest.approx(5.0, rel=0.08)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_keep_the_rate_and_spread_as_burstiness_says(burstiness: float) -> None:
    gaps = _gaps(GammaArrivals(5.0, burstiness))
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_constant_gaps_are_equal() -> None:
    assert _gaps(ConstantArrivals(4.0)) == pytest.approx(0.25)


def test_at_once_is_all_zero() -> None:
    assert not AllAtOnce().arrival_times(7, random_stream(0, "arrivals")).any()


@pytest.mark.parametrize("process", [PoissonArrivals(2.0), GammaArrivals(2.0, 0.5), ConstantArrivals(2.0)])
def test_times_start_at_zero_ascend_and_reproduce(process: ArrivalProcess) -> None:
    times = process.arrival_times(100, random_stream(1, "arrivals"))
    assert times[0] == 0
    assert (np.diff(times) >= 0).all()
    assert times.tolist() == process.arrival_times(100, random_stream(1, "arrivals")).tolist()
    assert process.arrival_times(1, random_stream(1, "arrivals")).tolist() == [0.0]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf")])
def test_rate_must_be_finite_and_positive(rate: float) -> None:
    with pytest.raises(ValueError, match="request rate"):
        PoissonArrivals(rate)


def test_burstiness_must_be_positive() -> None:
    with pytest.raises(ValueError, match="burstiness"):
        GammaArrivals(1.0, 0.0)
