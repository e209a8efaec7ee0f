"""The response of an event stream that is not a token stream: a few events per second, of any kind.

It is sse-starlette's, with our line ends and keep-alive, and it aborts clients that do not read. Token streams have a
response of their own (`sse.py`), since this one takes a cancel scope for each event.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from sse_starlette import EventSourceResponse, ServerSentEvent
from sse_starlette.sse import AppStatus, SendTimeoutError
from starlette.types import Receive, Scope, Send

from service.api.context import ApiContext
from service.api.disconnect import abort_connection

_LF = "\n"


def json_event(json: str, name: str) -> ServerSentEvent:
    """json: a single line."""
    return ServerSentEvent(json, event=name, sep=_LF)


class EventStreamResponse(EventSourceResponse):
    """Sends events, and then `[DONE]`, until the client disconnects. A client that does not read is aborted. `events`
    is closed in any case; when all is over, `on_end` is called once.

    SIGTERM does not cut the stream: `events` end when the request or job that they follow ends, as it does in the
    drain.
    """

    def __init__(self, events: AsyncIterator[ServerSentEvent], context: ApiContext, on_end: Callable[[], None]) -> None:
        super().__init__(
            _with_done(events),
            headers={"cache-control": "no-cache"},
            ping=context.config.stream_keepalive_s,
            ping_message_factory=lambda: ServerSentEvent(comment="keep-alive", sep=_LF),
            send_timeout=context.config.stream_send_timeout_s,
            sep=_LF,
        )
        self._unread = context.unread
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        AppStatus.enable_automatic_graceful_drain = False  # process-wide; it would look for uvicorn's exit
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            self._unread.tell(self.send_timeout or 0.0)
            abort_connection(scope)
        finally:
            self._on_end()


async def _with_done(events: AsyncIterator[ServerSentEvent]) -> AsyncIterator[ServerSentEvent]:
    async for event in events:
        yield event
    yield ServerSentEvent("[DONE]", sep=_LF)
