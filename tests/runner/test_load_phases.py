from __future__ import annotations

import time

from service.runner.load_phases import LoadPhases


def test_the_phases_fill_the_time_and_keep_their_order():
    before_s = time.monotonic()
    phases = LoadPhases()
    phases.end("weights")
    phases.end("warm-up")
    assert list(phases.seconds) == ["weights", "warm-up"]
    assert 0 <= sum(phases.seconds.values()) <= time.monotonic() - before_s
