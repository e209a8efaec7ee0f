"""Errors on the routes of the Messages API, as Anthropic's clients read them."""

from __future__ import annotations

from http import HTTPStatus

from starlette.types import Scope

from service.errors import ContextLengthExceeded, Overloaded, RequestError
from service.protocol.messages_error import ErrorType, MessagesErrorBody, MessagesErrorDetail

MESSAGES_PATH = "/v1/messages"
_OVERLOADED = 529
"""Anthropic's own status; its clients retry it."""
_TYPES: dict[int, ErrorType] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    _OVERLOADED: "overloaded_error",
}
"""All other refusals are `invalid_request_error`, all other faults `api_error`."""
_TOO_LONG = "prompt is too long: "
"""Anthropic's words, by which agents recognize that they have to shorten a conversation."""


def is_messages_route(scope: Scope) -> bool:
    path: str = scope["path"]
    return path == MESSAGES_PATH or path.startswith(MESSAGES_PATH + "/")


def messages_status(error: RequestError) -> int:
    return _OVERLOADED if isinstance(error, Overloaded) else error.status


def messages_error_body(error: RequestError, request_id: str) -> bytes:
    """The JSON of the error object."""
    status = messages_status(error)
    is_fault = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    kind = _TYPES.get(status, "api_error" if is_fault else "invalid_request_error")
    message = _TOO_LONG + error.message if isinstance(error, ContextLengthExceeded) else error.message
    detail = MessagesErrorDetail(type=kind, message=message)
    return MessagesErrorBody(error=detail, request_id=request_id).model_dump_json().encode()
