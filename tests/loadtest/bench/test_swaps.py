from __future__ import annotations

import pytest
import torch

from loadtest.bench.swaps import measure
from service.runner.kv_storage import KvLayout


@pytest.mark.parametrize("small_bytes", [0, 1 << 62])
def test_measures_both_ways(small_bytes: int) -> None:
    layout = KvLayout(2, 4, 2, 8, torch.float32)
    swap = measure(layout, num_tokens=10, small_bytes=small_bytes, device=torch.device("cpu"), rounds=2, step=None)
    assert swap.beside_s is None
    assert swap.launch_s >= swap.out_s > 0, "on a CPU the copies run at once"
    assert swap.in_s > 0
