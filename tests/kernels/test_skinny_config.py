from __future__ import annotations

import pytest
import torch

from kernels.skinny_config import FEW_ROWS, MAX_QUANTIZED_ROWS, MAX_ROWS, quantized_config, skinny_config
from tests.kernels.quantized_weights import KINDS, random_weight

RANGES = [range(1, FEW_ROWS + 1), range(FEW_ROWS + 1, MAX_ROWS + 1), range(MAX_ROWS + 1, MAX_QUANTIZED_ROWS + 1)]


@pytest.mark.parametrize("num_features", [256, 4096, 6144, 28672, 131072])
def test_rows_of_a_range_share_a_config(num_features):
    for rows in RANGES[:2]:
        assert len({skinny_config(n, num_features, 4096) for n in rows}) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_features", [64, 5000, 13000])
def test_rows_of_a_range_share_a_config_of_quantized_weights(num_features, kind):
    weight, _ = random_weight(kind, num_features, 256, torch.bfloat16, group=128)
    for rows in RANGES:
        assert len({quantized_config(n, weight) for n in rows}) == 1
