from __future__ import annotations

import pytest

from service.composition.default_seats import default_seats

GB = 10**9


@pytest.mark.parametrize(
    ("device", "weights", "kv_token", "seats"),
    [
        (24 << 30, 16 * GB, 131_072, 256),
        (140 << 30, 16 * GB, 131_072, 1024),  # Llama-8B on an H200
        (80 << 30, 16 * GB, 131_072, 512),  # on an H100, where the KV cache would not hold so many
        (140 << 30, 1.2 * GB, 114_688, 512),  # Qwen3-0.6B
        (140 << 30, 66 * GB, 262_144, 512),
    ],
)
def test_more_seats_where_a_long_reading_of_weights_is_shared_and_all_find_room(device, weights, kv_token, seats):
    assert default_seats(device, int(weights), kv_token) == seats
