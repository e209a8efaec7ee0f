"""A name for each request, for logs and for the client."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http_only import http_only


class RequestIds:
    """`X-Request-Id`: the client's if it is fit to be repeated, else a new one; in `scope` and on every answer.

    For logs only: a client may use the same one twice, so nothing is keyed by it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if re.fullmatch(r"[A-Za-z0-9._\-]{1,64}", given) else secrets.token_hex(16)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)
