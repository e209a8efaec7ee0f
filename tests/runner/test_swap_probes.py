from __future__ import annotations

import pytest

from service.runner.swap_probes import measure_swap
from tests.models.checkpoints import llama
from tests.runner.loading import load

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_transfers_are_timed_each_way_behind_others_and_behind_a_step(device, tmp_path):
    runner = load(llama(tmp_path), swap_bytes=1 << 20, device=device).runner
    timings = measure_swap(runner)
    behind_another = {t.to_host for t in timings if not t.is_first}
    assert behind_another == {True, False}
    if device == "cpu":  # a GPU's first one is not, while other processes keep it from what comes before
        assert {t.to_host for t in timings if t.is_first} == behind_another
    assert all(t.seconds > 0 for t in timings)
