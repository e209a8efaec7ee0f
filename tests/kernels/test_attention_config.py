from __future__ import annotations

import pytest
import torch

from kernels.attention_config import decode_config, prefill_config

SHARED_MEMORY_BYTES = 227 * 1024


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [8, 64, 80, 96, 128, 256])
def test_what_is_in_flight_fits_into_shared_memory(head_dim, dtype):
    decode, prefill = decode_config(head_dim, dtype), prefill_config(head_dim, dtype)
    row_bytes = max(16, 1 << (head_dim - 1).bit_length()) * dtype.itemsize
    assert (decode.num_stages // 2) * 2 * decode.block_kv * row_bytes <= SHARED_MEMORY_BYTES
    tiles = prefill.num_stages * 2 * prefill.block_kv + prefill.block_m
    assert (tiles - 2 * prefill.block_kv) * row_bytes <= SHARED_MEMORY_BYTES


@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 256])
def test_prefill_tiles_are_tall_enough_for_wgmma(head_dim):
    assert prefill_config(head_dim, torch.bfloat16).block_m in (64, 128)
