from __future__ import annotations

import pytest
import torch

from kernels.attention_config import decode_config, num_multiprocessors, prefill_config, prefill_units_config

SHARED_MEMORY_BYTES = 227 * 1024
HEAD_DIMS = [8, 64, 80, 96, 128, 256]


def padded(head_dim):
    return max(16, 1 << (head_dim - 1).bit_length())


@pytest.mark.pairwise
@pytest.mark.parametrize("num_pairs", [1, 32, 33, 128, 384, 512, 1024, 4096])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_decode_tiles_on_their_way_fit_into_shared_memory(head_dim, dtype, num_pairs):
    config = decode_config(head_dim, dtype, num_pairs)
    tiles = config.num_stages // 2
    assert tiles * 2 * config.block_kv * padded(head_dim) * dtype.itemsize <= SHARED_MEMORY_BYTES


def test_decodes_beside_prompts_have_the_same_tiles_whatever_a_graph_has_room_for():
    few, many = (decode_config(128, torch.bfloat16, num_pairs, is_beside=True) for num_pairs in (8, 8192))
    assert few == many and few.num_stages // 2 * 2 * few.block_kv * 128 * 2 <= SHARED_MEMORY_BYTES // 2


@pytest.mark.pairwise
@pytest.mark.parametrize("rows_per_sm", [1, 255, 256, 10_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_prefill_tiles_on_their_way_fit_into_shared_memory(head_dim, dtype, rows_per_sm):
    config = prefill_config(head_dim, dtype, rows_per_sm)
    cells = config.block_m + 2 * max(2, config.num_stages // 2) * config.block_kv
    programs = 2 if config.max_registers == 128 else 1
    assert programs * cells * padded(head_dim) * dtype.itemsize <= SHARED_MEMORY_BYTES


@pytest.mark.parametrize("rows_per_sm", [1, 10_000])
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_prefill_tiles_are_tall_enough_for_wgmma(head_dim, rows_per_sm):
    assert prefill_config(head_dim, torch.bfloat16, rows_per_sm).block_m in (64, 128)


def test_prefill_by_units_is_for_long_prompts_and_for_many():
    assert prefill_units_config(128, 1, 512) == prefill_units_config(128, 256, 4) is not None
    assert prefill_units_config(128, 255, 511) is None
    assert prefill_units_config(64, 10_000, 10_000) is None


def test_prefill_by_units_fits_into_shared_memory():
    config = prefill_units_config(128, 256, 512)
    assert (128 + 2 * config.num_stages * config.block_kv) * 128 * 2 <= SHARED_MEMORY_BYTES


def test_a_cpu_counts_as_a_small_gpu():
    assert num_multiprocessors(torch.device("cpu")) == 8
