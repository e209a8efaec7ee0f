from __future__ import annotations

import torch

from kernels.unit_parts import UnitsConfig, units_launch


def test_a_launch_has_a_program_for_each_tile_and_split():
    x, arrivals = torch.zeros(130, 512), torch.zeros(8, dtype=torch.int32)
    config = UnitsConfig(block_m=64, block_n=128, num_warps=4, num_stages=3, num_splits=3)
    grid, partial = units_launch(x, 200, 4, arrivals, config)
    assert grid == (6, 3) and partial.shape == (3, 6, 128, 64) and partial.dtype == torch.float32


def test_k_is_not_split_for_want_of_counters_or_of_stages():
    x, arrivals = torch.zeros(130, 512), torch.zeros(5, dtype=torch.int32)
    config = UnitsConfig(block_m=64, block_n=128, num_warps=4, num_stages=3, num_splits=3)
    assert units_launch(x, 200, 4, None, config) == ((6, 1), x)
    assert units_launch(x, 200, 4, arrivals, config) == ((6, 1), x)
    assert units_launch(x[:1], 100, 1, arrivals, config)[0] == (1, 1)
    assert units_launch(x[:1], 100, 2, arrivals, config)[0] == (1, 2)
