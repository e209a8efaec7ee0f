"""Spans as a collector gets them: a real exporter, and the protocol's own reader."""

from __future__ import annotations

from contextlib import ExitStack

import httpx
import pytest

pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")

from service.composition.tracing import make_spans
from service.core.clock import MonotonicClock
from service.settings.reader import read_settings
from tests.api.collector import Collector, attributes
from tests.api.running_server import MODEL, Scene, running
from tests.api.wire import COMPLETIONS, completion

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "nobody may read this"


@pytest.fixture(scope="module")
def collector() -> Collector:
    """After two calls, one of them within a trace of the client's, a refusal and a probe."""
    with Collector().listening() as collector, ExitStack() as at_end:
        settings = read_settings(["--otlp-endpoint", collector.url])
        scene = Scene(watchers=make_spans(settings, MonotonicClock(), at_end))
        with running(scene) as server, httpx.Client(base_url=server.base_url) as http:
            server.say(SECRET)
            traceparent = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
            http.post(COMPLETIONS, json=completion(prompt=[SECRET, "b"], max_tokens=64), headers=traceparent)
            http.post(COMPLETIONS, json=completion(), headers={"traceparent": "none of that"})
            http.post(COMPLETIONS, json=completion(model="another"))
            http.get("/health")
        at_end.close()  # what is left is sent
        return collector


def test_a_call_within_a_trace_goes_on_with_it(collector: Collector):
    calls = collector.named(f"POST {COMPLETIONS}")
    assert len(calls) == 3
    within, *others = calls
    assert (within.trace_id.hex(), within.parent_span_id.hex()) == (TRACE, PARENT)
    assert all(call.trace_id.hex() != TRACE and not call.parent_span_id for call in others)
    assert {span.name for span in collector.spans} == {f"POST {COMPLETIONS}", "wait", "prefill", "decode"}


def test_below_a_call_stand_the_times_of_each_prompt_in_their_order(collector: Collector):
    call = collector.named(f"POST {COMPLETIONS}")[0]
    below = [span for span in collector.spans if span.parent_span_id == call.span_id]
    assert sorted(span.name for span in below) == sorted(["wait", "prefill", "decode"] * 2)
    for index in range(2):
        of_prompt = {s.name: s for s in below if attributes(s)["headrace.prompt.index"] == index}
        wait, prefill, decode = (of_prompt[name] for name in ("wait", "prefill", "decode"))
        times = [wait.start_time_unix_nano, wait.end_time_unix_nano, prefill.end_time_unix_nano]
        times.append(decode.end_time_unix_nano)
        assert times == sorted(times)
        slack_ns = 5_000_000  # two clocks are read one after the other
        assert call.start_time_unix_nano <= times[0] + slack_ns
        assert times[-1] <= call.end_time_unix_nano + slack_ns
        assert attributes(wait)["headrace.wait.reason"] == "iteration"


def test_a_call_says_what_it_took_and_never_what_was_said(collector: Collector):
    facts = attributes(collector.named(f"POST {COMPLETIONS}")[0])
    expected = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.model": MODEL,
        "http.response.status_code": 200,
    }
    assert {name: facts[name] for name in expected} == expected
    assert facts["gen_ai.response.finish_reasons"] == ["stop"]
    assert facts["gen_ai.usage.output_tokens"] > len(SECRET)
    assert facts["gen_ai.usage.input_tokens"] > 0
    assert facts["gen_ai.latency.time_to_first_token"] >= facts["gen_ai.latency.time_in_queue"] >= 0
    assert attributes(collector.named(f"POST {COMPLETIONS}")[2])["error.type"] == "model_not_found"
    assert SECRET not in str(collector.spans)
    assert collector.resource["service.name"] == "headrace"
    assert collector.resource["headrace.ranks"] == 1
