from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.finetune.job_training import JobStopped
from service.finetune.reading_pace import ReadingPace


class Worker:
    """Works and rests by a clock of its own."""

    def __init__(self, *, is_serving: bool) -> None:
        self.now_s = self.rested_s = 0.0
        self.is_serving = is_serving
        self.is_wanted = True
        self.pace = ReadingPace(lambda: self.is_serving, self.check, lambda: self.now_s, self.rest)

    def check(self) -> None:
        if not self.is_wanted:
            raise JobStopped

    def rest(self, seconds: float) -> None:
        self.now_s += seconds
        self.rested_s += seconds

    def work(self, seconds: float) -> None:
        self.now_s += seconds
        self.pace()


pieces = st.lists(st.floats(1e-6, 0.1), min_size=1, max_size=50)


@given(pieces)
def test_beside_requests_it_has_a_fifth_of_the_time(worked: list[float]) -> None:
    worker = Worker(is_serving=True)
    for seconds in worked:
        worker.work(seconds)
    assert sum(worked) <= worker.now_s / 5 + 0.001 + 1e-9, "up to a piece that has not been rested for yet"


@given(pieces)
def test_it_never_rests_while_nobody_is_served(worked: list[float]) -> None:
    worker = Worker(is_serving=False)
    for seconds in worked:
        worker.work(seconds)
    assert worker.rested_s == 0


def test_what_was_read_while_nobody_was_served_is_not_rested_for() -> None:
    worker = Worker(is_serving=False)
    worker.work(10.0)
    worker.is_serving = True
    worker.work(0.5)
    assert worker.rested_s == 2.0


def test_who_is_not_wanted_any_more_hears_of_it_at_once() -> None:
    worker = Worker(is_serving=True)
    worker.is_wanted = False
    with pytest.raises(JobStopped):
        worker.work(1e-6)
