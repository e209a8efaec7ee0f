"""Pure ASGI middleware, outermost first: request id, metrics and log, error barrier, key check, body limits."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.disconnect import ClientGone
from service.api.error_responses import error_response, internal_error, nobody_there
from service.errors import AuthenticationFailed, InvalidRequest, PayloadTooLarge, RequestError
from service.metrics.recorder import Recorder

_logger = logging.getLogger(__name__)
_access_logger = logging.getLogger("headrace.access")

_OPEN_PATHS = frozenset({"/health", "/ready", "/"})
_UNKNOWN_ROUTE = "unknown"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestIds:
    """`X-Request-Id`: the client's if it is fit to be repeated, else a new one; in `scope` and on every answer.

    For logs only: a client may use the same one twice, so nothing is keyed by it.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if re.fullmatch(r"[A-Za-z0-9._\-]{1,64}", given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self._app(scope, receive, send_with_id)


class HttpFacts:
    """Counts answers by route template and status, and writes the access log if there is to be one.

    routes: endpoint -> template. A request that no route matched counts as `unknown`.
    """

    def __init__(self, app: ASGIApp, recorder: Recorder, routes: Mapping[Any, str], access_log: bool) -> None:
        self._app = app
        self._recorder = recorder
        self._routes = routes
        self._access_log = access_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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
            client = client_of(scope) or "-"
            _access_logger.info("%s %s %d %.1f ms %s %s", method, route, status, seconds * 1000, request_id, client)


class ErrorBarrier:
    """Nothing that goes wrong in one request leaves it: errors become OpenAI error bodies, surprises are logged."""

    def __init__(self, app: ASGIApp, recorder: Recorder) -> None:
        self._app = app
        self._recorder = recorder

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_and_note)
        except (ClientDisconnect, ClientGone):  # before its body was complete, or its prompt read
            await nobody_there()(scope, receive, send)
            return
        except RequestError as error:
            refusal = error
        except Exception:
            _logger.exception("request %s failed", scope["state"]["request_id"])
            refusal = internal_error()
        else:
            return
        self._recorder.record_rejection(refusal.code or refusal.error_type)
        if not started:
            await error_response(refusal)(scope, receive, send)


class BearerAuth:
    """Lets through who has one of the keys; health, readiness, the playground's page and, by choice, metrics are
    open. No keys: all is open.

    keys: each KEY or NAME:KEY. The name stands for the client in shares, traces and the access log; a key without one
    is known by the beginning of its digest.

    Decides on `scope["path"]`, never on a URL put together from headers. The comparison takes the same time for every
    wrong key.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], guards_metrics: bool = False) -> None:
        self._app = app
        self._open_paths = _OPEN_PATHS if guards_metrics else _OPEN_PATHS | {"/metrics"}
        self._name_of: dict[bytes, str] = {}
        for entry in keys:
            name, _, key = entry.rpartition(":")
            digest = hashlib.sha256(key.encode()).digest()
            self._name_of[digest] = name or digest.hex()[:16]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._name_of and scope["path"] not in self._open_paths:
            scope.setdefault("state", {})["client"] = self._check(Headers(scope=scope).get("authorization", ""))
        await self._app(scope, receive, send)

    def _check(self, authorization: str) -> str:
        """The name of the key's owner."""
        scheme, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._name_of]
        if scheme.lower() != "bearer" or not any(matches):
            raise AuthenticationFailed("Incorrect or missing API key.")
        return self._name_of[digest]


def client_of(scope: Scope) -> str:
    """Who sent the request: a name for its API key that does not tell the key; empty on an open server."""
    return str(scope.get("state", {}).get("client", ""))


class BodyTimeout(InvalidRequest):
    """The client was too slow with its body; it may try again."""

    status = 408
    code = "body_timeout"


class BodyLimits:
    """Bounds the size of a body and the time that it may take to arrive."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        length = Headers(scope=scope).get("content-length", "")
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
