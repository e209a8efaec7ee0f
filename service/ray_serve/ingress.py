"""The HTTP entry: each call goes to a replica that Serve's router chooses, and its answer streams back.

When a replica dies: a call whose answer had not begun is sent to another replica; a stream that had begun ends with an
error event and `[DONE]`; the connection of any other answer that had begun is cut.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.api.answers.sse_frames import DONE, data_frame
from service.api.error_responses import error_body, error_response
from service.api.messages_errors import is_messages_route, messages_error_body
from service.errors import NotFound, PayloadTooLarge, RequestError, ServerError, Unavailable
from service.ray_serve.call import AnswerHead, Call, end_to_end, prompt_of

logger = logging.getLogger("headrace.ray")

OF_ONE_REPLICA = ("/v1/files", "/v1/batches", "/v1/fine_tuning", "/metrics")
"""The state behind these routes belongs to one replica, and the next call may go to another."""

_TRIES = 2
_SERVES_OWN = frozenset({b"date", b"x-request-id"})
"""Serve's proxy writes them too; the id is the one that the replica was given."""


class Parts(Protocol):
    """The answer of a remote replica: the head, then pieces. Raises one of the `lost` exceptions if the replica is
    lost."""

    def __aiter__(self) -> AsyncIterator[AnswerHead | bytes]: ...

    def cancel(self) -> None:
        """The client has disconnected."""
        ...


class Ingress:
    """send: to a replica of the router's choice. lost: exceptions that mean that the replica is lost, or cannot be
    reached. max_body_bytes: of a request; beyond, 413."""

    def __init__(self, send: Callable[[Call], Parts], lost: tuple[type[Exception], ...], max_body_bytes: int) -> None:
        self._send = send
        self._lost = lost
        self._max_body_bytes = max_body_bytes

    async def __call__(self, request: Request) -> Response:
        request.scope.setdefault("state", {}).setdefault("request_id", f"req-{uuid.uuid4().hex}")
        try:
            return await self._answer(request)
        except RequestError as error:
            return error_response(error, request.scope)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if path.startswith(OF_ONE_REPLICA):
            raise NotFound(f"{path} is not served behind Ray Serve, only by a server that runs by itself.")
        target = f"{path}?{request.url.query}" if request.url.query else path
        body = await self._body(request)
        call = Call(request.method, target, end_to_end(request.headers.raw), body, prompt_of(body))
        for number in range(_TRIES):
            parts = self._send(call)
            pieces = aiter(parts)
            try:
                head = await anext(pieces)
            except self._lost as fault:
                logger.warning("a replica was lost before it answered (try %d of %d): %s", number + 1, _TRIES, fault)
                continue
            except BaseException:
                parts.cancel()
                raise
            assert isinstance(head, AnswerHead)
            return self._streaming(head, parts, pieces, request)
        raise Unavailable("No replica could be reached.", code="replica_lost")

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > self._max_body_bytes:
                raise PayloadTooLarge(f"The body is longer than {self._max_body_bytes} bytes.")
        return bytes(body)

    def _streaming(
        self, head: AnswerHead, parts: Parts, pieces: AsyncIterator[AnswerHead | bytes], request: Request
    ) -> Response:
        names = dict(head.headers)
        is_events = names.get(b"content-type", b"").startswith(b"text/event-stream")
        ending = self._last_event(request) if is_events else None
        response = StreamingResponse(self._pieces(parts, pieces, ending), head.status)
        response.raw_headers = [header for header in head.headers if header[0] not in _SERVES_OWN]
        return response

    async def _pieces(
        self, parts: Parts, pieces: AsyncIterator[AnswerHead | bytes], ending: bytes | None
    ) -> AsyncIterator[bytes]:
        """ending: ends a stream whose replica is lost; None: the connection is cut."""
        try:
            async for piece in pieces:
                assert isinstance(piece, bytes)
                yield piece
        except self._lost as fault:
            logger.warning("a replica was lost in the midst of an answer: %s", fault)
            if ending is None:
                raise
            yield ending
        finally:
            parts.cancel()

    def _last_event(self, request: Request) -> bytes:
        """As the service itself ends a stream that fails."""
        error = ServerError("The replica that computed this answer was lost.")
        if is_messages_route(request.scope):
            return b"event: error\n" + data_frame(messages_error_body(error, request.scope["state"]["request_id"]))
        return data_frame(error_body(error)) + DONE
