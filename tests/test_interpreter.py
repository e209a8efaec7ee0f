from __future__ import annotations

import gc
import sys

import pytest

from service.interpreter import SWITCH_INTERVAL_ON_CPU_S, SWITCH_INTERVAL_S, settle, unsettle


@pytest.mark.parametrize(("is_gpu", "switch_s"), [(True, SWITCH_INTERVAL_S), (False, SWITCH_INTERVAL_ON_CPU_S)])
def test_settling_freezes_what_lives_and_shortens_the_switch(is_gpu, switch_s):
    thresholds, interval_s = gc.get_threshold(), sys.getswitchinterval()
    try:
        gc.set_threshold(700, 10, 10)
        settle(is_gpu=is_gpu)
        assert gc.get_freeze_count() > 1000
        assert sys.getswitchinterval() == pytest.approx(switch_s, abs=2e-6)
        assert gc.get_threshold()[0] > 700
    finally:
        unsettle()
        assert gc.get_freeze_count() == 0
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval_s)
