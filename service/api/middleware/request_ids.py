"""An id for each request, for logs and for the client."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.messages_errors import is_messages_route
from service.api.random_ids import RandomIds
from service.api.scope import header_of, http_only, is_fit_id


class RequestIds:
    """`X-Request-Id`: the client's if it is fit to be repeated, else a new one; in `scope` and on every answer.
    Anthropic's clients read it from `request-id`.

    A client may use an id twice, so it is for people: for logs, and to look up the latest trace. A call may bring its
    own id in its body (`call_head`), so the id that is in `scope` when the answer starts counts.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._ids = RandomIds()

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = header_of(scope, b"x-request-id")
        is_given = is_fit_id(given)
        state = scope.setdefault("state", {})
        state.update(request_id=given if is_given else self._ids.next(), request_id_is_given=is_given)
        names = (b"x-request-id", b"request-id") if is_messages_route(scope) else (b"x-request-id",)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                value = state["request_id"].encode()
                message["headers"] = [*message["headers"], *((name, value) for name in names)]
            await send(message)

        await self._app(scope, receive, send_with_id)
