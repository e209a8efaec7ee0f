from __future__ import annotations

import pytest

from service.composition.default_waiting_tokens import BYTES_A_TOKEN, default_waiting_tokens
from service.engine.async_engine import MAX_SHARED_FACTOR

GIB = 1 << 30


@pytest.mark.parametrize("gib", [4, 16, 256])
def test_a_burst_of_a_thousand_ordinary_requests_may_wait_whatever_they_share(gib: int):
    assert default_waiting_tokens(gib * GIB) > 1_000 * 2_300


@pytest.mark.parametrize("gib", [1, 4, 16, 2048])
def test_all_prompts_that_may_wait_take_at_most_a_quarter_of_the_memory(gib: int):
    assert default_waiting_tokens(gib * GIB) * MAX_SHARED_FACTOR * BYTES_A_TOKEN <= gib * GIB / 4


def test_however_little_there_is_something_may_wait():
    assert default_waiting_tokens(100) == 1
