from __future__ import annotations

import pytest

from service.core.clock import ManualClock, MonotonicClock


def test_the_manual_clock_moves_only_by_hand():
    clock = ManualClock(5.0)
    assert clock.now_s() == clock.now_s() == 5.0
    clock.advance(0.25)
    assert clock.now_s() == pytest.approx(5.25)


def test_the_real_clock_never_goes_back():
    clock = MonotonicClock()
    times = [clock.now_s() for _ in range(100)]
    assert times == sorted(times)
