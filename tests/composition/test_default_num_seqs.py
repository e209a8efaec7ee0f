from __future__ import annotations

import pytest

from service.composition.default_num_seqs import default_num_seqs
from service.config import CacheConfig

GB = 10**9


@pytest.mark.parametrize(
    ("device", "weights", "kv_token", "num_seqs"),
    [
        (24 << 30, 16 * GB, 131_072, 256),
        (140 << 30, 16 * GB, 131_072, 1024),  # Llama-8B on an H200
        (80 << 30, 16 * GB, 131_072, 512),  # on an H100, where the KV cache would not hold so many
        (140 << 30, 1.2 * GB, 114_688, 512),  # Qwen3-0.6B
        (140 << 30, 66 * GB, 262_144, 512),
    ],
)
def test_more_sequences_where_a_long_reading_of_weights_is_shared_and_all_find_room(
    device, weights, kv_token, num_seqs
):
    assert default_num_seqs(device, int(weights), kv_token, CacheConfig(16, 0.9, None)) == num_seqs


@pytest.mark.parametrize(
    ("utilization", "cache_bytes", "num_seqs"),
    [(0.5, None, 512), (0.9, 8 << 30, 512), (0.5, 80 << 30, 1024)],
)
def test_the_room_is_that_of_the_cache_that_was_asked_for(utilization, cache_bytes, num_seqs):
    cache = CacheConfig(16, utilization, cache_bytes)
    assert default_num_seqs(140 << 30, 16 * GB, 131_072, cache) == num_seqs
