from __future__ import annotations

import torch

from kernels.unit_parts import UnitsConfig, is_aligned, units_launch

CONFIG = UnitsConfig(block_m=64, block_n=128, num_warps=4, num_stages=3, num_splits=3)


def test_a_launch_has_a_program_for_each_tile_and_split():
    x, arrivals = torch.zeros(130, 512), torch.zeros(8, dtype=torch.int32)
    launch = units_launch(130, 200, 4, arrivals, CONFIG, x)
    assert launch.grid == (6, 3) and launch.constants["TILES"] == 3 and launch.constants["SPLITS"] == 3
    assert launch.partial.shape == (3, 6, 128, 64) and launch.partial.dtype == torch.float32
    assert launch.arrivals is arrivals


def test_k_is_not_split_for_want_of_counters_or_of_stages():
    x, arrivals = torch.zeros(130, 512), torch.zeros(5, dtype=torch.int32)
    for counters in (None, arrivals):
        launch = units_launch(130, 200, 4, counters, CONFIG, x)
        assert launch.grid == (6, 1) and launch.constants["SPLITS"] == 1 and launch.partial is x
        assert launch.arrivals is (x if counters is None else counters)
    assert units_launch(1, 100, 1, arrivals, CONFIG, x).grid == (1, 1)
    assert units_launch(1, 100, 2, arrivals, CONFIG, x).grid == (1, 2)


def test_rows_are_aligned_by_their_start_and_their_stride():
    x = torch.zeros(4, 6, 24, dtype=torch.bfloat16)
    assert is_aligned(x) and is_aligned(x[:, 1:]) and is_aligned(x[0])
    assert not is_aligned(x[..., 1:]) and not is_aligned(torch.zeros(4, 6, 20, dtype=torch.bfloat16))
