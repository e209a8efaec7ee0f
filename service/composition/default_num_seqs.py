"""The default of max-num-seqs, by the device's memory, the weights that each step reads and the room for KV blocks."""

from __future__ import annotations

from service.config import CacheConfig

NUM_SEQS = 256
NUM_SEQS_WITH_MUCH_MEMORY = 512
NUM_SEQS_OF_LARGE_MODELS = 1024

MUCH_MEMORY_BYTES = 64 << 30
LARGE_WEIGHTS_BYTES = 8 << 30
"""One H200 reads this much in 2 ms. More sequences in an iteration share that reading. A smaller model has little to
share, and with that many streams the host is its limit (loadtest/LOG.md)."""

TOKENS_A_SEQUENCE = 500
"""For which each of so many sequences must find room in the KV cache."""


def default_num_seqs(device_bytes: int, weights_bytes: int, kv_token_bytes: int, cache: CacheConfig) -> int:
    """device_bytes: of a GPU's memory. kv_token_bytes: of a token's keys and values."""
    if device_bytes < MUCH_MEMORY_BYTES:
        return NUM_SEQS
    if weights_bytes < LARGE_WEIGHTS_BYTES:
        return NUM_SEQS_WITH_MUCH_MEMORY
    room_bytes = cache.memory_bytes
    if room_bytes is None:
        room_bytes = int(cache.memory_utilization * device_bytes) - weights_bytes
    has_room = room_bytes >= NUM_SEQS_OF_LARGE_MODELS * TOKENS_A_SEQUENCE * kv_token_bytes
    return NUM_SEQS_OF_LARGE_MODELS if has_room else NUM_SEQS_WITH_MUCH_MEMORY
