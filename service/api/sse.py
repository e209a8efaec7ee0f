"""Server-sent events: framing, and the response that carries one call's stream.

`EventSourceResponse` of sse-starlette does the sending; ready bytes go in, so it frames nothing itself. What
has to be known about it (3.7): importing it makes uvicorn's SIGTERM cut every stream, unless automatic
draining is switched off (`create_app` does so: the engine ends the streams when it is drained); its line
ends are CRLF and its ping carries a date, unless told otherwise; a generator that never started runs no
`finally`, so the response itself does the closing.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from sse_starlette.sse import EventSourceResponse, SendTimeoutError
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
_KEEP_ALIVE = b": keep-alive\n\n"
_logger = logging.getLogger(__name__)


def data_frame(json: bytes) -> bytes:
    """One event. `json` is in one line."""
    return b"data: " + json + b"\n\n"


class TokenStreamResponse(EventSourceResponse):
    """Sends frames until there are no more, the client goes away, or it does not read for `send_timeout_s`.

    Whatever happens, `close` is called once, at the end, with the reason for stopping if frames were left.
    """

    def __init__(
        self,
        frames: AsyncIterator[bytes],
        close: Callable[[str], None],
        *,
        keepalive_s: float,
        send_timeout_s: float,
        headers: dict[str, str],
    ) -> None:
        super().__init__(
            frames,
            headers={"Cache-Control": "no-cache", **headers},
            sep="\n",
            ping=keepalive_s,
            ping_message_factory=_keep_alive,
            send_timeout=send_timeout_s,
        )
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = "client_disconnected"
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            reason = "send_timeout"
            _logger.warning("a stream was not read for %s s and was cut", self.send_timeout)
        finally:
            self._close(reason)


def _keep_alive() -> Any:
    # Declared as a ServerSentEvent, but ready bytes are passed through.
    return _KEEP_ALIVE
