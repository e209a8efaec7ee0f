"""The response that carries one call's stream of server-sent events (sse_frames.py).

It is our own, since most frames need no `send` at all. Measured on uvloop with frames of 200 bytes, one per
turn of the event loop, and a sink that costs nothing: 1.8 us a frame, against 3.7 us with Starlette's StreamingResponse
and 8.0 us with sse-starlette's EventSourceResponse, which has a cancel scope around every send
(loadtest/frame_cost.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service.api.answers.frame_source import FrameSource
from service.api.answers.sse_frames import KEEP_ALIVE
from service.api.disconnect import abort_connection, disconnected
from service.core.host_times import HostTimes
from service.core.rare_warning import RareWarning

WRITE_NOW = "write_now"
_HEADERS = (
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
    (b"content-type", b"text/event-stream; charset=utf-8"),
)
_WAITED_S = 0.01
"""Seconds. A longer send has waited for the client, and does not count as host time."""


class TokenStreamResponse(Response):
    """Sends frames until there are no more, the client disconnects, or it reads nothing for `send_timeout_s`.

    Sends `keep_alive` whenever nothing was sent for `keepalive_s`. Whatever happens, the source of the frames is closed
    once, at the end. The connection of a client that does not read is aborted, if the server offers a way
    (`abort_connection`), and `unread` logs it.

    Where the server takes a frame without blocking (`write_now`), frames go there directly from the code that made the
    tokens, past all middleware and past this response's task. The task sends what may have to wait: the beginning, the
    end, and frames for a client that reads too slowly. While it waits, nothing is taken.
    """

    def __init__(
        self,
        frames: FrameSource,
        times: HostTimes,
        unread: RareWarning,
        *,
        keep_alive: bytes = KEEP_ALIVE,
        keepalive_s: float,
        send_timeout_s: float,
        headers: dict[str, str],
    ) -> None:
        super().__init__(headers=headers)
        self._frames = frames
        self._times = times
        self._unread = unread
        self._keep_alive = keep_alive
        self._keepalive_s = keepalive_s
        self._send_timeout_s = send_timeout_s
        self._write_now: Callable[[bytes], bool] | None = None
        self._unsent = b""  # what the task is to send
        self._is_sending = True
        self._fault: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._last_sent_s = 0.0

    def init_headers(self, headers: Mapping[str, str] | None = None) -> None:
        """Our headers and the given ones; Starlette's would also look for a length."""
        given = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in (headers or {}).items()]
        self.raw_headers = [*_HEADERS, *given]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._write_now = scope.get("state", {}).get(WRITE_NOW)
        watching = asyncio.ensure_future(disconnected(receive))
        watching.add_done_callback(self._wake)
        reason = "client_disconnected"
        try:
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await self._send(send, start)
            self._frames.read_by(self._on_more)
            while await self._next(watching):
                frame, self._unsent = self._unsent or self._keep_alive, b""
                await self._send(send, _body(frame, more_body=True))
            if not watching.done():
                await self._send(send, _body(self._unsent, more_body=False))
        except TimeoutError:
            reason = "send_timeout"
            self._unread.tell(self._send_timeout_s)
            abort_connection(scope)
        finally:
            watching.cancel()
            self._frames.close(reason)

    async def _next(self, watching: asyncio.Future[None]) -> bool:
        """Wait until the task has something to send that is not the end: a frame, or a keep-alive. False if the client
        has disconnected, or the end is to be sent."""
        self._on_more()
        while not (self._unsent or self._frames.is_done or watching.done() or self._fault):
            left_s = self._last_sent_s + self._keepalive_s - time.monotonic()
            if left_s <= 0:
                return True
            await self._wait(left_s)
        if self._fault is not None:
            raise self._fault
        return not (self._frames.is_done or watching.done())

    def _on_more(self) -> None:
        """There may be something to take. Called among the events of other streams, so an exception is left to the
        task."""
        if self._is_sending or self._unsent:
            return
        try:
            frame = self._frames.take()
            if self._frames.is_done or (frame and not self._written_now(frame)):
                self._unsent = frame
                self._wake()
        except Exception as fault:
            self._fault = fault
            self._wake()

    def _written_now(self, frame: bytes) -> bool:
        began_s = time.monotonic()
        if self._write_now is None or not self._write_now(frame):
            return False
        self._last_sent_s = time.monotonic()
        self._times.sse += self._last_sent_s - began_s
        return True

    async def _send(self, send: Send, message: Message) -> None:
        """Raises TimeoutError if the client does not read."""
        self._is_sending, began_s = True, time.monotonic()
        async with asyncio.timeout(self._send_timeout_s):
            await send(message)
        self._is_sending, self._last_sent_s = False, time.monotonic()
        if self._last_sent_s - began_s < _WAITED_S:
            self._times.sse += self._last_sent_s - began_s

    async def _wait(self, seconds: float) -> None:
        """Waits `seconds`, or until `_wake`."""
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        try:
            await self._waiting
        finally:
            timer.cancel()
            self._waiting = None

    def _wake(self, _: object = None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _body(frame: bytes, *, more_body: bool) -> Message:
    return {"type": "http.response.body", "body": frame, "more_body": more_body}
