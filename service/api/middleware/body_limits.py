"""Limits on the size of a body, on the time that it takes to arrive, and on the bytes of all bodies together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.middleware.body_budget import BodyBudget, BodyShare
from service.api.scope import header_of, http_only
from service.config import UPLOAD_STEP_BYTES
from service.errors import BodyTimeout, Overloaded, PayloadTooLarge


class BodyLimits:
    """Bounds the size of a body, the time that it may take to arrive, and the bytes of all bodies.

    Puts the body's share of `budget` into the request's state as `body_share`; the code that has parsed the body
    releases it. on_end: called at a request's end with the bytes of its body that arrived.

    A POST to `upload_path` is written to disk as it arrives: it may have `max_upload_bytes`, does not count among the
    bytes of all bodies, and each step of it has the time that another body has as a whole.
    """

    def __init__(
        self,
        app: ASGIApp,
        max_bytes: int,
        timeout_s: float,
        budget: BodyBudget,
        on_end: Callable[[int], None],
        *,
        upload_path: str = "",
        max_upload_bytes: int = 0,
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._budget = budget
        self._on_end = on_end
        self._upload_path = upload_path
        self._max_upload_bytes = max_upload_bytes

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == self._upload_path and scope["method"] == "POST":
            await self._pass_upload(scope, receive, send)
            return
        share = self._budget.share()
        body = _LimitedBody(receive, self._max_bytes, self._timeout_s, share)
        scope["state"]["body_share"] = share
        try:
            length = header_of(scope, b"content-length")
            if length.isascii() and length.isdigit():
                body.check_size(int(length))
                self._budget.check_room(int(length))
            await self._app(scope, body.receive, send)
        finally:
            share.release()
            self._on_end(body.num_bytes)

    async def _pass_upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        upload = _UploadBody(receive, self._max_upload_bytes, self._timeout_s)
        length = header_of(scope, b"content-length")
        if length.isascii() and length.isdigit():
            upload.check_size(int(length))
        await self._app(scope, upload.receive, send)


class _UploadBody:
    """A `receive` that counts bytes and requires steady progress."""

    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._num_bytes = 0
        self._is_complete = False
        self._waited_s = 0.0  # in the current step; only the client's time counts, not the disk's

    def check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise PayloadTooLarge(f"An upload may have at most {self._max_bytes} bytes.")

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(max(0.0, self._timeout_s - self._waited_s)):
                message = await self._receive()
        except TimeoutError:
            raise BodyTimeout(
                f"{UPLOAD_STEP_BYTES} bytes of the upload did not arrive within {self._timeout_s:g} s."
            ) from None
        self._waited_s += time.monotonic() - started_s
        num_steps = self._num_bytes // UPLOAD_STEP_BYTES
        self._num_bytes += len(message.get("body", b""))
        self.check_size(self._num_bytes)
        if self._num_bytes // UPLOAD_STEP_BYTES > num_steps:
            self._waited_s = 0.0
        self._is_complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message


class _LimitedBody:
    """A `receive` that counts bytes. Once the body is complete it only passes messages on."""

    def __init__(self, receive: Receive, max_bytes: int, timeout_s: float, share: BodyShare) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._deadline_s = time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._share = share
        self.num_bytes = 0
        self._is_complete = False

    def check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise PayloadTooLarge(f"The body may have at most {self._max_bytes} bytes.")

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        try:
            async with self._share.wait_until(self._deadline()):
                message = await self._receive()
        except TimeoutError:
            if not self._share.is_evicted:
                raise BodyTimeout(f"The body did not arrive within {self._timeout_s:g} s.") from None
        if self._share.is_evicted:
            raise Overloaded("The memory of this body is needed for smaller ones. Try again later.")
        num_bytes = len(message.get("body", b""))
        self.num_bytes += num_bytes
        self.check_size(self.num_bytes)
        self._share.take(num_bytes)
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_complete = True
            self._share.finish()
        return message

    def _deadline(self) -> float:
        """The deadline on the event loop's clock."""
        return asyncio.get_running_loop().time() + self._deadline_s - time.monotonic()
