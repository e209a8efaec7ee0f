"""An OpenTelemetry collector: what was sent to it by OTLP over HTTP, read by the protocol's own definitions."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class Collector:
    """spans: those that have come, with `resource` their sender's attributes."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.resource: dict[str, Any] = {}

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # `self` is the collector
                body = handler.rfile.read(int(handler.headers["content-length"]))
                if handler.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert handler.path == "/v1/traces"
                self._take(ExportTraceServiceRequest.FromString(body))
                handler.send_response(200)
                handler.send_header("content-length", "0")
                handler.end_headers()

            def log_message(handler, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _take(self, request: Any) -> None:
        for of_resource in request.resource_spans:
            self.resource = attributes(of_resource.resource)
            self.spans += [span for scope in of_resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    @contextmanager
    def listening(self) -> Iterator[Collector]:
        thread = threading.Thread(target=self._server.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


def attributes(of: Any) -> dict[str, Any]:
    """Of a span or a resource, as plain values."""
    return {each.key: _plain(each.value) for each in of.attributes}


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)
