from __future__ import annotations

import gc
import sys

import pytest

from service.interpreter import SWITCH_INTERVAL_S, settle, unsettle


def test_settling_freezes_what_lives_and_shortens_the_switch():
    thresholds, interval_s = gc.get_threshold(), sys.getswitchinterval()
    try:
        settle()
        assert gc.get_freeze_count() > 1000
        assert sys.getswitchinterval() == pytest.approx(SWITCH_INTERVAL_S, abs=2e-6)
        assert gc.get_threshold()[0] > thresholds[0]
    finally:
        unsettle()
        assert gc.get_freeze_count() == 0
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval_s)
