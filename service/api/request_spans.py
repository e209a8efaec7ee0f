"""OpenTelemetry spans of an answered request: the call as a server span, and below it one span per prompt with where
its time went.

Imported only if spans are wanted, since OpenTelemetry is an extra. Names are from its conventions for HTTP and for
generative AI, and vLLM's `gen_ai.latency.*`. The content of prompts and answers is in none of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.api.call_summary import CallSummary, summarized
from service.api.http_exchange import HttpExchange
from service.core.clock import Clock
from service.core.stats import RequestStats

MAX_PROMPTS = 16
"""Prompts of a call that have spans of their own; the call's span has the sums of all."""

_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/messages": "chat", "/v1/responses": "chat"}
_TRACE_HEADERS = (b"traceparent", b"tracestate")
_SERVER_ERROR = 500


class RequestSpans:
    """An `HttpWatcher`. clock: the engine's, which timed the prompts."""

    def __init__(self, tracer: Tracer, clock: Clock) -> None:
        self._tracer = tracer
        self._clock = clock
        self._propagator = TraceContextTextMapPropagator()

    def __call__(self, exchange: HttpExchange) -> None:
        carrier = {name.decode(): value.decode("latin-1") for name, value in exchange.headers if name in _TRACE_HEADERS}
        span = self._tracer.start_span(
            f"{exchange.method} {exchange.route}",
            self._propagator.extract(carrier, Context()),
            SpanKind.SERVER,
            _of_http(exchange),
            start_time=exchange.began_ns,
        )
        if exchange.status >= _SERVER_ERROR:
            span.set_status(Status(StatusCode.ERROR))
        if exchange.call is not None and span.is_recording():
            span.set_attributes(_of_call(exchange.route, summarized(exchange.call)))
            for index, stats in exchange.call.ended[:MAX_PROMPTS]:
                self._tell_prompt(span, index, stats)
        span.end(exchange.began_ns + int(exchange.seconds * 1e9))

    def _tell_prompt(self, parent: Span, index: int, stats: RequestStats) -> None:
        within = set_span_in_context(parent, Context())
        of_prompt = {"headrace.prompt.index": index}
        for wait in stats.waits:
            self._tell("wait", within, wait.since_s, wait.until_s, {**of_prompt, "headrace.wait.reason": wait.reason})
        if stats.first_scheduled_s is None:
            return
        prefill_end_s = stats.first_token_s or stats.finished_s
        in_prefill = {
            "gen_ai.usage.input_tokens": stats.num_prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": stats.num_cached_tokens,
        }
        self._tell("prefill", within, stats.first_scheduled_s, prefill_end_s, {**of_prompt, **in_prefill})
        if stats.first_token_s is not None:
            in_decode = {
                "gen_ai.usage.output_tokens": stats.num_output_tokens,
                "headrace.preemptions": stats.num_preemptions,
                "headrace.drafted_tokens": stats.num_drafted,
                "headrace.accepted_tokens": stats.num_accepted,
            }
            self._tell("decode", within, stats.first_token_s, stats.finished_s, {**of_prompt, **in_decode})

    def _tell(self, name: str, within: Context, since_s: float, until_s: float, facts: Mapping[str, str | int]) -> None:
        span = self._tracer.start_span(name, within, attributes=dict(facts), start_time=self._unix_ns(since_s))
        span.end(self._unix_ns(until_s))

    def _unix_ns(self, engine_s: float) -> int:
        return time.time_ns() - int((self._clock.now_s() - engine_s) * 1e9)


def _of_http(exchange: HttpExchange) -> dict[str, str | int]:
    facts: dict[str, str | int] = {
        "http.request.method": exchange.method,
        "http.route": exchange.route,
        "http.response.status_code": exchange.status,
        "headrace.request.id": exchange.request_id,
    }
    if exchange.client:
        facts["headrace.key"] = exchange.client
    if exchange.error_code is not None:
        facts["error.type"] = exchange.error_code
    return facts


def _of_call(route: str, call: CallSummary) -> dict[str, str | int | float | list[str]]:
    facts: dict[str, str | int | float | list[str] | None] = {
        "gen_ai.operation.name": _OPERATIONS.get(route, "text_completion"),
        "gen_ai.provider.name": "headrace",
        "gen_ai.request.model": call.model,
        "gen_ai.response.id": call.id,
        "gen_ai.response.finish_reasons": [*call.finish],
        "gen_ai.usage.input_tokens": call.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.cached_tokens,
        "gen_ai.usage.output_tokens": call.output_tokens,
        "gen_ai.latency.time_in_queue": call.queue_s,
        "gen_ai.latency.time_to_first_token": call.ttft_s,
        "headrace.adapter": call.adapter,
        "headrace.preemptions": call.preemptions,
        "headrace.outcome": call.outcome,
    }
    return {name: value for name, value in facts.items() if value is not None}
