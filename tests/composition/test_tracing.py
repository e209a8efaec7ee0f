from __future__ import annotations

import sys
import threading
import time
from contextlib import ExitStack

import pytest

from service.composition.tracing import TO_SEND_THE_REST_S, make_spans, traces_url
from service.core.clock import MonotonicClock
from service.errors import ConfigError
from service.settings.reader import read_settings


def test_without_an_endpoint_there_are_none():
    assert make_spans(read_settings([]), MonotonicClock(), ExitStack()) == []


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[otel\]'"):
        make_spans(read_settings(["--otlp-endpoint", "http://localhost:4318"]), MonotonicClock(), ExitStack())


@pytest.mark.parametrize("endpoint", ["localhost:4318", "ftp://localhost", "http://", "grpc://localhost:4317"])
def test_what_is_no_collectors_url_is_refused(endpoint: str):
    with pytest.raises(ConfigError, match="otlp-endpoint"):
        traces_url(endpoint)


def test_a_collector_is_named_by_its_base_or_in_full():
    for endpoint in ("http://host:4318", "http://host:4318/", "http://host:4318/v1/traces"):
        assert traces_url(endpoint) == "http://host:4318/v1/traces"
    assert traces_url("https://host/base") == "https://host/base/v1/traces"


def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "6")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra otel is not installed")
    with ExitStack() as at_end:
        (spans,) = make_spans(read_settings(["--otlp-endpoint", "http://127.0.0.1:9"]), MonotonicClock(), at_end)
        spans._tracer.start_span("lost").end()
        began_s = time.monotonic()
    assert time.monotonic() - began_s < TO_SEND_THE_REST_S + 3
    for thread in threading.enumerate():
        if thread.name == "last spans":  # it draws random pauses, which other tests must not meet
            thread.join(20)
