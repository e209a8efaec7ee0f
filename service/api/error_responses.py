"""Errors as bodies of the API that the route belongs to, OpenAI's or Anthropic's. Messages of foreign exceptions never
reach a client."""

from __future__ import annotations

import math
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from service.api.messages_errors import MESSAGES_PATH, is_messages_route, messages_error_body, messages_status
from service.errors import MethodNotAllowed, NotFound, RateLimited, RequestError, ServerError, StorageFull, Unavailable
from service.protocol.error_body import ErrorBody, ErrorDetail

_CLIENT_CLOSED_REQUEST = 499
_OPENAI_ROUTES = "/v1/chat/completions, /v1/completions, /v1/responses and /v1/models"
"""Shown to clients that left out /v1 or asked for an unknown route."""
_CLOSING = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.REQUEST_ENTITY_TOO_LARGE})
"""Answers that are given before the body was read: the connection is closed, so that the rest of the body is not read
as the next request."""


def error_body(error: RequestError) -> bytes:
    """The JSON of OpenAI's error object."""
    detail = ErrorDetail(message=error.message, type=error.error_type, param=error.param, code=error.code)
    return ErrorBody(error=detail).model_dump_json().encode()


def error_response(error: RequestError, scope: Scope) -> Response:
    """The HTTP answer to a request that is refused or fails. scope: of the request, with its `request_id`."""
    headers = {}
    if isinstance(error, Unavailable | RateLimited):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, StorageFull):
        headers["x-should-retry"] = "false"  # openai-python's; it would send the whole file again
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in _CLOSING:
        headers["Connection"] = "close"
    if is_messages_route(scope):
        body = messages_error_body(error, scope["state"]["request_id"])
        return Response(body, messages_status(error), headers, media_type="application/json")
    return Response(error_body(error), error.status, headers, media_type="application/json")


def nobody_there() -> Response:
    """Stands for the answer to a client that has disconnected; appears in logs and metrics only."""
    return Response(status_code=_CLIENT_CLOSED_REQUEST)


def internal_error() -> ServerError:
    """What a client sees of an unexpected exception; the details are in the log."""
    return ServerError("The server had an error while processing the request.")


def from_starlette(error: HTTPException) -> RequestError:
    """Starlette's own refusals: unknown route, wrong method."""
    if error.status_code == HTTPStatus.NOT_FOUND:
        return NotFound(
            f"There is no such route. The OpenAI API is at {_OPENAI_ROUTES}, Anthropic's at {MESSAGES_PATH}."
        )
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        return MethodNotAllowed("This route does not allow this method.")
    return internal_error()
