"""GET /metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response

from service.metrics.text_format import TextFormat


class Metrics:
    """Always text format 0.0.4: from OpenMetrics a scraper would store `vllm:x` as `vllm_x`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._text = TextFormat(registry)

    async def get(self, http: Request) -> Response:
        return Response(self._text.render(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
