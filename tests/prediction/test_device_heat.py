from __future__ import annotations

import pytest

from service.prediction.device_heat import RECOVERY_S, DeviceHeat, slowed_s

WAITS_FOR_MEMORY_S = 0.004


def hot(seconds: float = 10 * RECOVERY_S) -> DeviceHeat:
    heat = DeviceHeat()
    heat.decoded(WAITS_FOR_MEMORY_S)
    heat.computed(seconds)
    return heat


def test_a_device_that_has_computed_nothing_is_cold():
    assert DeviceHeat().level == 0


def test_long_iterations_heat_and_short_ones_do_not():
    assert hot().level == pytest.approx(1 - WAITS_FOR_MEMORY_S / (10 * RECOVERY_S), rel=1e-3)
    assert 0.3 < hot(RECOVERY_S).level < 0.7
    assert hot(WAITS_FOR_MEMORY_S).level == 0


def test_it_stays_as_hot_as_its_load_however_long_that_lasts():
    heat = hot()
    before = heat.level
    heat.computed(10 * RECOVERY_S)
    assert heat.level == pytest.approx(before, rel=1e-3)


@pytest.mark.parametrize("cool", [DeviceHeat.rested, DeviceHeat.decoded])
def test_rests_and_decodes_cool_by_their_length_not_by_their_number(cool):
    at_once, in_parts = hot(), hot()
    before = at_once.level
    cool(at_once, RECOVERY_S)
    for _ in range(4):
        cool(in_parts, RECOVERY_S / 4)
    assert at_once.level == pytest.approx(in_parts.level)
    assert at_once.level == pytest.approx(before / 2.718, rel=1e-3)


def test_an_iteration_is_under_the_heat_before_it_as_long_as_that_lasts():
    assert slowed_s(0.0, 1.0) == 0
    assert slowed_s(0.5, 1e-4) == pytest.approx(0.5e-4, rel=0.01)
    assert slowed_s(0.5, 100 * RECOVERY_S) == pytest.approx(0.5 * RECOVERY_S)
