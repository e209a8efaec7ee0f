"""From the settings to the traces' way out: spans are gathered and sent to a collector by a thread of the SDK's."""

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
"""At the end; a collector that does not answer keeps nobody waiting."""


def make_spans(settings: Settings, clock: Clock, at_end: ExitStack) -> list[HttpWatcher]:
    """Empty if no collector is named. clock: the engine's. at_end: sends what is left. The SDK's own variables count
    (OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS, ...).

    Raises ConfigError if the endpoint is no URL, or the extra `otel` is not installed.
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
    """Where traces go at a collector that is named by its base URL, as OTEL_EXPORTER_OTLP_ENDPOINT names one."""
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigError(f"otlp-endpoint: {endpoint!r} is not the URL of a collector, such as http://localhost:4318")
    return endpoint if parts.path.endswith("/v1/traces") else f"{endpoint.rstrip('/')}/v1/traces"
