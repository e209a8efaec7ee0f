from __future__ import annotations

import pytest

from service.composition.scheduler_defaults import (
    BYTES_A_WAITING_TOKEN,
    default_budget,
    default_num_seqs,
    default_waiting_tokens,
)
from service.config import CacheConfig
from service.engine.async_engine import MAX_SHARED_FACTOR

GB = 10**9
GIB = 1 << 30


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


@pytest.mark.parametrize(("gib", "is_gpu", "tokens"), [(24, True, 2048), (80, True, 4096), (512, False, 512)])
def test_only_a_gpu_with_much_memory_has_a_budget_for_deep_queues(gib: int, is_gpu: bool, tokens: int):
    assert default_budget(gib << 30, is_gpu=is_gpu) == tokens


@pytest.mark.parametrize("gib", [4, 16, 256])
def test_a_burst_of_a_thousand_ordinary_requests_may_wait_whatever_they_share(gib: int):
    assert default_waiting_tokens(gib * GIB) > 1_000 * 2_300


@pytest.mark.parametrize("gib", [1, 4, 16, 2048])
def test_all_prompts_that_may_wait_take_at_most_a_quarter_of_the_memory(gib: int):
    assert default_waiting_tokens(gib * GIB) * MAX_SHARED_FACTOR * BYTES_A_WAITING_TOKEN <= gib * GIB / 4


def test_however_little_there_is_something_may_wait():
    assert default_waiting_tokens(100) == 1
