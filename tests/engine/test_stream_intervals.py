from __future__ import annotations

import pytest

from service.engine.stream_intervals import (
    BUSY,
    COALESCED_WAKES_PER_S,
    LEAST_COALESCED_S,
    FixedInterval,
    IntervalByLoad,
)
from service.engine.streams import WINDOW_S

STEPS_A_WINDOW = 5
STEP_S = WINDOW_S / STEPS_A_WINDOW


class Loop:
    """An event loop that is busy for `wake_s` per reader that it wakes, and for the share `other` with other work."""

    def __init__(self, wake_s: float, other: float = 0.0) -> None:
        self.busy_s = self.paused_s = 0.0
        self.wake_s, self.other = wake_s, other
        self.interval = IntervalByLoad(lambda: self.busy_s)

    def serve(self, num_streams: int, seconds: float) -> list[float]:
        """Run windows of iterations of STEP_S each. Returns the interval that was used in each."""
        intervals = []
        for _ in range(round(seconds / WINDOW_S)):
            interval_s = self.interval_s(num_streams)
            num_woken = round(num_streams * min(1.0, STEP_S / interval_s)) if interval_s else num_streams
            self.busy_s += self.other * WINDOW_S + self.wake_s * num_woken * STEPS_A_WINDOW
            counts = num_streams * STEPS_A_WINDOW, num_woken * STEPS_A_WINDOW
            self.interval.note(*counts, WINDOW_S + self.paused_s)
            self.paused_s = 0.0
            intervals.append(interval_s)
        return intervals

    def interval_s(self, num_streams: int) -> float:
        return 0.0 if self.interval.is_at_once else self.interval.seconds(num_streams)


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
    assert set(intervals[2:]) == {want}, "nor do they go back and forth: what was saved is no free time"


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
    loop.paused_s = 60.0
    loop.serve(1, WINDOW_S)
    assert loop.interval_s(1) == 0.0


def test_a_fixed_interval_heeds_no_load():
    interval = FixedInterval(0.25)
    interval.note(1000, 1, 5.0)
    assert not interval.is_at_once
    assert interval.seconds(1000) == 0.25
    assert FixedInterval(0.0).is_at_once
