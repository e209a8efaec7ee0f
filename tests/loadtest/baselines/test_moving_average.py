from __future__ import annotations

import pytest

from loadtest.baselines.moving_average import MovingAverage
from service.prediction.workload import Workload


def test_it_knows_the_mean_of_what_is_about_as_large_and_follows_it():
    average = MovingAverage()
    assert average.predicted_s(Workload.of_chunk(0, 100)) is None
    for seconds in (1.0, 3.0):
        average.observe(Workload.of_chunk(0, 100), seconds)
    average.observe(Workload.of_chunk(0, 1000), 9.0)
    assert average.predicted_s(Workload.of_chunk(500, 70)) == pytest.approx(2.0)
    for _ in range(100):
        average.observe(Workload.of_chunk(0, 65), 5.0)
    assert average.predicted_s(Workload.of_chunk(0, 127)) == pytest.approx(5.0, rel=1e-3)


def test_what_was_not_seen_is_as_the_nearest_of_its_kind():
    average = MovingAverage()
    average.observe(Workload.of_decodes(64, 640), 0.005)
    average.observe(Workload.of_chunk(0, 500), 0.02)
    assert average.predicted_s(Workload.of_chunk(0, 64)) == 0.02
    assert average.predicted_s(Workload.of_decodes(500, 5000)) == 0.005
