"""How large a body may be, and how long it may take to arrive."""

from __future__ import annotations

import asyncio
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.http_only import http_only
from service.api.request_headers import header_of
from service.errors import BodyTimeout, PayloadTooLarge


class BodyLimits:
    """Bounds the size of a body and the time that it may take to arrive."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = header_of(scope, b"content-length")
        body = _LimitedBody(receive, self._max_bytes, self._timeout_s)
        if length.isascii() and length.isdigit():
            body.check_size(int(length))
        await self._app(scope, body.receive, send)


class _LimitedBody:
    """A `receive` that counts. Once the body is complete it only passes on."""

    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._deadline_s = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._num_bytes = 0
        self._is_complete = False

    def check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise PayloadTooLarge(f"The body may have at most {self._max_bytes} bytes.")

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline()):
                message = await self._receive()
        except TimeoutError:
            raise BodyTimeout(f"The body did not arrive within {self._timeout_s:g} s.") from None
        self._num_bytes += len(message.get("body", b""))
        self.check_size(self._num_bytes)
        self._is_complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    def _deadline(self) -> float:
        """The deadline on the event loop's clock."""
        return asyncio.get_running_loop().time() + self._deadline_s - time.monotonic()
