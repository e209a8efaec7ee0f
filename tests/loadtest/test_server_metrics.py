from __future__ import annotations

import pytest

from loadtest.server_metrics import read_metrics
from tests.api.running_server import Scene, running


def test_reads_every_sample_and_its_labels():
    with running(Scene()) as server:
        before = read_metrics(server.base_url)
        read_metrics(server.base_url)
        after = read_metrics(server.base_url)
    assert before["headrace_requests_waiting"] == 0
    scrapes = "headrace_http_request_seconds_count{route=/metrics}"
    assert after[scrapes] - before.get(scrapes, 0) == 2


def test_says_that_nobody_answers():
    with pytest.raises(OSError):
        read_metrics("http://127.0.0.1:9")
