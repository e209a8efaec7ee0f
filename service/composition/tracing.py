"""From the settings to the export of traces: a thread of the SDK collects spans and sends them to a collector."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

from service.api.http_exchange import HttpWatcher
from service.core.clock import Clock
from service.core.version import distribution_version
from service.errors import ConfigError
from service.settings.settings import Settings

TO_SEND_THE_REST_S = 2.0
"""Seconds at the end; a collector that does not answer delays nobody longer."""


def make_spans(settings: Settings, clock: Clock, at_end: ExitStack) -> list[HttpWatcher]:
    """Empty if no collector is configured. clock: the engine's. at_end: sends the rest. The SDK's own variables are
    honoured (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, ...).

    ConfigError if the endpoint is not a URL, or the extra `otel` is not installed.
    """
    if settings.otlp_endpoint is None:
        return []
    url = traces_url(settings.otlp_endpoint)
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as fault:
        raise ConfigError("otlp-endpoint: OpenTelemetry is not installed: pip install 'headrace[otel]'") from fault
    from service.api.request_spans import RequestSpans

    name = settings.api_config().served_model_names[0]
    ranks = settings.parallel_config().num_ranks
    version = distribution_version()
    resource = Resource.create({"service.version": version, "headrace.model": name, "headrace.ranks": ranks})
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "headrace"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(url)))
    at_end.callback(_in_time, provider.shutdown)
    return [RequestSpans(provider.get_tracer("headrace", version), clock)]


def _in_time(send_the_rest: Callable[[], None]) -> None:
    thread = threading.Thread(target=send_the_rest, name="last spans", daemon=True)
    thread.start()
    thread.join(TO_SEND_THE_REST_S)


def traces_url(endpoint: str) -> str:
    """The URL for traces at a collector with this base URL, as for OTEL_EXPORTER_OTLP_ENDPOINT."""
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"otlp-endpoint: {endpoint!r} is not the URL of a collector, such as http://localhost:4318")
    return endpoint if parts.path.endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"
