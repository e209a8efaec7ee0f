"""What was asked and answered: metrics by route and status, and the access log."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.scope import client_of, http_only
from service.metrics.recorder import Recorder

_access_logger = logging.getLogger("headrace.access")

_UNKNOWN_ROUTE = "unknown"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class HttpFacts:
    """Counts answers by route template and status, and writes the access log if there is to be one.

    routes: endpoint -> template. A request that no route matched counts as `unknown`.
    """

    def __init__(self, app: ASGIApp, recorder: Recorder, routes: Mapping[Any, str], access_log: bool) -> None:
        self._app = app
        self._recorder = recorder
        self._routes = routes
        self._access_log = access_log

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
        if self._access_log:
            request_id = scope["state"]["request_id"]
            client, call_id = client_of(scope) or "-", scope["state"].get("call_id", "-")
            line = "%s %s %d %.1f ms %s %s %s"
            _access_logger.info(line, method, route, status, seconds * 1000, request_id, client, call_id)
