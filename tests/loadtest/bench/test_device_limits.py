from __future__ import annotations

import pytest

from loadtest.bench.device_limits import measure_device

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_measures_what_a_machine_can_have(device):
    limits = measure_device(device, "float32")
    assert 1e8 < limits.bytes_per_s < 1e14
    assert 1e8 < limits.flops_per_s < 1e16
    assert limits.name in str(limits)
