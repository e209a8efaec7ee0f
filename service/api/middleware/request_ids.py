"""A name for each request, for logs and for the client."""

from __future__ import annotations

import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.messages_errors import is_messages_route
from service.api.random_ids import RandomIds
from service.api.scope import header_of, http_only

_FIT = re.compile(r"[A-Za-z0-9._\-]{1,64}")


class RequestIds:
    """`X-Request-Id`: the client's if it is fit to be repeated, else a new one; in `scope` and on every answer.
    Anthropic's clients look for it in `request-id`.

    For logs only: a client may use the same one twice, so nothing is keyed by it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._ids = RandomIds()

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = header_of(scope, b"x-request-id")
        request_id = given if _FIT.fullmatch(given) else self._ids.next()
        scope.setdefault("state", {})["request_id"] = request_id
        names = (b"x-request-id", b"request-id") if is_messages_route(scope) else (b"x-request-id",)
        headers = [(name, request_id.encode()) for name in names]

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        await self._app(scope, receive, send_with_id)
