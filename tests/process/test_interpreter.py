from __future__ import annotations

import gc
import sys

import pytest

from service.process.interpreter import SWITCH_INTERVAL_ON_CPU_S, SWITCH_INTERVAL_S, settled


@pytest.mark.parametrize(("is_gpu", "switch_s"), [(True, SWITCH_INTERVAL_S), (False, SWITCH_INTERVAL_ON_CPU_S)])
def test_settled_is_frozen_with_a_shorter_switch_and_everything_comes_back(is_gpu, switch_s):
    gc.unfreeze()  # some Pythons freeze what they start with
    before = gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count()
    with pytest.raises(RuntimeError), settled(is_gpu=is_gpu):
        assert gc.get_freeze_count() > 1000
        assert sys.getswitchinterval() == pytest.approx(switch_s, abs=2e-6)
        assert gc.get_threshold() != before[0]
        raise RuntimeError
    assert (gc.get_threshold(), sys.getswitchinterval(), gc.get_freeze_count()) == before


def test_the_next_test_finds_frozen_what_there_was():
    """What the test above has unfrozen: tests/conftest.py."""
    assert gc.get_freeze_count() > 10_000
