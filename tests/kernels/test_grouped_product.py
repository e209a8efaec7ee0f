from __future__ import annotations

import pytest
import torch

from kernels.grouped_product import (
    FP8,
    INT4,
    MXFP4,
    PLAIN,
    ExpertWeight,
    GroupedConfig,
    grouped_config,
    grouped_launch,
    tokens_of_each_config,
    usual_tile,
)


def test_blocks_grow_with_the_rows_of_an_expert():
    sizes = [grouped_config(num_pairs, 128).block_m for num_pairs in (1, 8, 2048, 4096, 8192, 16384, 65536)]
    assert sizes == sorted(sizes) and sizes[0] == 16 and sizes[-1] == 128


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("form", [PLAIN, FP8, MXFP4, INT4])
@pytest.mark.parametrize(("num_experts", "top_k"), [(128, 8), (8, 2), (60, 4), (32, 4)])
def test_every_configuration_has_a_number_of_tokens_that_asks_for_it(num_experts, top_k, form, dtype):
    def config(num_tokens):
        return grouped_config(num_tokens * top_k, num_experts, form, dtype)

    tokens = tokens_of_each_config(num_experts, top_k, form, dtype)
    assert [config(n) for n in tokens] == list(dict.fromkeys(config(n) for n in range(1, 4 * tokens[-1])))
    assert all(config(n) != config(n - 1) for n in tokens[1:])


@pytest.mark.parametrize("num_pairs", [1, 16, 64, 1024, 4096])
def test_downs_have_the_same_blocks(num_pairs):
    for form in (PLAIN, FP8, MXFP4, INT4):
        config = grouped_config(num_pairs, 32, form)
        assert (config.down or config).block_m == config.block_m


def test_few_rows_of_mxfp4_in_bf16_are_multiplied_in_registers_or_by_units():
    assert all(grouped_config(n, 32, MXFP4).warp_tiles for n in (4, 64, 128))
    assert all(grouped_config(n, 32, MXFP4).by_units for n in (256, 512, 1024))
    for form, dtype in ((MXFP4, torch.float32), (FP8, torch.bfloat16)):
        for num_pairs in (4, 1024):
            config = grouped_config(num_pairs, 32, form, dtype)
            assert config.warp_tiles == 0 and not config.by_units


def test_blocks_that_are_not_for_the_units_have_a_tile():
    for num_pairs in (256, 512, 4096):
        block_m = grouped_config(num_pairs, 32, MXFP4).block_m
        assert usual_tile(block_m).block_m == block_m and not usual_tile(block_m).by_units


@pytest.mark.parametrize(
    ("x_size", "weight", "block_m"),
    [
        (64, ExpertWeight(torch.zeros(2, 8, 32)), 16),  # another size
        (32, ExpertWeight(torch.zeros(2, 8, 32).double()), 16),  # another dtype
        (32, ExpertWeight(torch.zeros(2, 8, 32)), 32),  # blocks made by another configuration
        (32, ExpertWeight(torch.zeros(2, 8, 32), bias=torch.zeros(8)), 16),
    ],
)
def test_what_does_not_fit_is_not_launched(x_size, weight, block_m):
    with pytest.raises(AssertionError):
        grouped_launch(torch.zeros(1, x_size), weight, GroupedConfig(16, 32, 32, 4, 2), block_m)
