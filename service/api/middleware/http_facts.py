"""Metrics by route and status, and the records of answered requests."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http_exchange import PROBES, HttpExchange, HttpWatcher
from service.api.scope import http_only
from service.metrics.recorder import Recorder

_UNKNOWN_ROUTE = "unknown"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpFacts:
    """Counts answers by route template and status, and calls the watchers for all routes but PROBES.

    routes: endpoint -> template. A request that no route matched counts as `unknown`.
    """

    def __init__(
        self, app: ASGIApp, recorder: Recorder, routes: Mapping[Any, str], watchers: Sequence[HttpWatcher]
    ) -> None:
        self._app = app
        self._recorder = recorder
        self._routes = routes
        self._watchers = watchers

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_s = time.monotonic()
        status = 500

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        finally:
            self._note(scope, status, time.monotonic() - started_s)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = self._routes.get(scope.get("endpoint"), _UNKNOWN_ROUTE)
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._recorder.record_http(route, method, status, seconds)
        if self._watchers and route not in PROBES:
            began_ns = time.time_ns() - int(seconds * 1e9)
            exchange = HttpExchange(route, method, status, began_ns, seconds, scope["headers"], scope["state"])
            for watch in self._watchers:
                watch(exchange)
