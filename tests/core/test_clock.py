from __future__ import annotations

from service.core.clock import MonotonicClock


def test_never_goes_back():
    clock = MonotonicClock()
    times = [clock.now_s() for _ in range(100)]
    assert times == sorted(times)
