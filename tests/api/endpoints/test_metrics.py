from __future__ import annotations

import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.api.running_server import MODEL, RunningServer
from tests.api.wire import COMPLETIONS, completion

OPEN_METRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"


@pytest.mark.parametrize("accept", ["*/*", OPEN_METRICS, "text/html"])
def test_the_format_is_never_negotiated(http: httpx.Client, accept: str) -> None:
    response = http.get("/metrics", headers={"Accept": accept})
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "# EOF" not in response.text


def test_only_counters_are_named_totals(http: httpx.Client) -> None:
    families = [f for f in text_string_to_metric_families(http.get("/metrics").text) if f.name.startswith("headrace_")]
    totals = {sample.name for family in families for sample in family.samples if family.type == "counter"}
    assert all(name.endswith("_total") for name in totals)
    assert not [family.name for family in families if family.type != "counter" and family.name.endswith("_total")]


def test_a_request_is_seen(server: RunningServer, http: httpx.Client) -> None:
    def read() -> dict[str, float]:
        families = text_string_to_metric_families(http.get("/metrics").text)
        samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_bucket")]
        return {f"{sample.name}{sorted(sample.labels.items())}": sample.value for sample in samples}

    before = read()
    server.say("hello")
    http.post(COMPLETIONS, json=completion(n=2))
    server.check_idle()
    after = read()
    vllm = [("engine", "0"), ("model_name", MODEL)]
    for name in (
        "headrace_normalized_latency_seconds_count[]",
        "headrace_iteration_batch_size_count[]",
        f"vllm:time_to_first_token_seconds_count{vllm}",
        f"vllm:e2e_request_latency_seconds_count{vllm}",
    ):
        assert after[name] > before[name]
    assert after["headrace_kv_blocks[]"] == 4096
    assert after["headrace_kv_blocks_used[]"] == after["headrace_requests_running[]"] == 0
    assert not any("_created" in name for name in after)


def test_live_gauges_see_a_running_batch(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.002
    body = completion(prompt=["a", "b"], max_tokens=500, stream=True)
    with http.stream("POST", COMPLETIONS, json=body):
        deadline_s = time.monotonic() + 5
        while "\nheadrace_batch_size 2.0\n" not in (text := http.get("/metrics").text):
            assert time.monotonic() < deadline_s
    assert "\nheadrace_requests_running 2.0\n" in text
    assert "\nheadrace_kv_blocks_used 0.0\n" not in text
