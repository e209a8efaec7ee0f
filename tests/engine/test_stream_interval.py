from __future__ import annotations

import pytest

from service.engine.stream_interval import (
    BUSY,
    COALESCED_WAKES_PER_S,
    LEAST_COALESCED_S,
    WINDOW_S,
    FixedInterval,
    IntervalByLoad,
)

STEP_S = WINDOW_S / 5


class Loop:
    """An event loop that computes `wake_s` for each reader it wakes, and `other` of its time for others."""

    def __init__(self, wake_s: float, other: float = 0.0) -> None:
        self.now_s = self.busy_s = 0.0
        self.wake_s, self.other = wake_s, other
        self.interval = IntervalByLoad(0.0, lambda: self.busy_s)

    def serve(self, num_streams: int, seconds: float) -> list[float]:
        """Iterations of STEP_S each; the intervals that were asked for."""
        intervals = []
        for _ in range(round(seconds / STEP_S)):
            interval_s = self.interval.seconds(num_streams)
            num_woken = round(num_streams * min(1.0, STEP_S / interval_s)) if interval_s else num_streams
            self.now_s += STEP_S
            self.busy_s += self.other * STEP_S + self.wake_s * num_woken
            self.interval.note(num_streams, num_woken, self.now_s)
            intervals.append(interval_s)
        return intervals


@pytest.mark.parametrize("num_streams", [1, 17, 200, 2000])
def test_at_once_while_the_event_loop_is_less_than_half_busy_however_many_streams(num_streams):
    loop = Loop(wake_s=0.9 * BUSY * STEP_S / num_streams)
    assert set(loop.serve(num_streams, 1.0)) == {0.0}


@pytest.mark.parametrize("num_streams", [17, 200, 2000])
def test_together_where_all_at_once_would_make_it_busier(num_streams):
    loop = Loop(wake_s=1.2 * BUSY * STEP_S / num_streams)
    intervals = loop.serve(num_streams, 1.0)
    assert intervals[0] == 0.0, "not measured yet"
    want = max(LEAST_COALESCED_S, num_streams / COALESCED_WAKES_PER_S)
    assert set(intervals[10:]) == {want}, "nor do they go back and forth: what was saved is no free time"


def test_work_for_others_counts():
    wake_s = 0.7 * BUSY * STEP_S / 100
    assert set(Loop(wake_s).serve(100, 1.0)) == {0.0}
    assert Loop(wake_s, other=0.3).serve(100, 1.0)[-1] > 0.0


def test_at_once_again_when_the_others_have_gone():
    loop = Loop(wake_s=0.2 * BUSY * STEP_S / 100, other=0.9)
    assert loop.serve(100, 1.0)[-1] > 0.0
    loop.other = 0.0
    assert loop.serve(100, 1.0)[-1] == 0.0


def test_a_pause_is_no_load():
    loop = Loop(wake_s=1.2 * BUSY * STEP_S / 100)
    assert loop.serve(100, 1.0)[-1] > 0.0
    loop.now_s += 60.0
    loop.serve(1, WINDOW_S)
    assert loop.interval.seconds(1) == 0.0


def test_a_fixed_interval_heeds_no_load():
    interval = FixedInterval(0.25)
    interval.note(1000, 1, 5.0)
    assert interval.seconds(1000) == 0.25
