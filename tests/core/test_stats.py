from __future__ import annotations

import pytest

from service.core.stats import RequestStats


def make_stats(num_output_tokens: int) -> RequestStats:
    return RequestStats(3, 0, num_output_tokens, 1, 10, 1.0, 1.5, 2.0, 5.0, 0)


def test_normalized_latency_is_end_to_end_seconds_per_output_token():
    assert make_stats(8).e2e_s == pytest.approx(4.0)
    assert make_stats(8).normalized_latency_s == pytest.approx(0.5)
    assert make_stats(0).normalized_latency_s is None
