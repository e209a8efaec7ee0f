"""The default of max-num-seqs, by the device's memory and by the weights that each step reads."""

from __future__ import annotations

SEATS = 256
SEATS_WITH_MUCH_MEMORY = 512
SEATS_OF_LARGE_MODELS = 1024

MUCH_MEMORY_BYTES = 64 << 30
LARGE_WEIGHTS_BYTES = 8 << 30
"""One H200 reads this much in 2 ms. More sequences in an iteration share that reading. A smaller model has little to
share, and with that many streams the host is its limit (loadtest/LOG.md)."""

TOKENS_A_SEAT = 500
MEMORY_SHARE = 0.9


def default_seats(device_bytes: int, weights_bytes: int, kv_token_bytes: int) -> int:
    """device_bytes: of a GPU's memory. kv_token_bytes: of a token's keys and values."""
    if device_bytes < MUCH_MEMORY_BYTES:
        return SEATS
    left = MEMORY_SHARE * device_bytes - weights_bytes
    has_room = left >= SEATS_OF_LARGE_MODELS * TOKENS_A_SEAT * kv_token_bytes
    return SEATS_OF_LARGE_MODELS if weights_bytes >= LARGE_WEIGHTS_BYTES and has_room else SEATS_WITH_MUCH_MEMORY
