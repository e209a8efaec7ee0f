"""Reading an ASGI scope: headers, ids and the client of a request."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Protocol, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

_FIT_ID = re.compile(r"[A-Za-z0-9._\-]{1,64}")


class Wraps(Protocol):
    """A middleware holds the app that it wraps."""

    _app: ASGIApp


Self = TypeVar("Self", bound=Wraps)
Call = Callable[[Self, Scope, Receive, Send], Awaitable[None]]


def http_only(call: Call[Self]) -> Call[Self]:
    """For a middleware's `__call__`: scopes that are not HTTP (the app's lifespan) are passed directly to the app."""

    @wraps(call)
    def pass_by(self: Self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return call(self, scope, receive, send) if scope["type"] == "http" else self._app(scope, receive, send)

    return pass_by


def header_of(scope: Scope, name: bytes) -> str:
    """The first header of this name; names are in lower case, as servers give them. Empty if there is none. Builds no
    object for all headers."""
    for each, value in scope["headers"]:
        if each == name:
            text: str = value.decode("latin-1")
            return text
    return ""


def is_fit_id(text: str) -> bool:
    """Whether a client's own id may be repeated in headers and logs."""
    return _FIT_ID.fullmatch(text) is not None


def client_of(scope: Scope) -> str:
    """The client that sent the request: a name for its API key that does not reveal the key; empty on an open
    server."""
    return str(scope.get("state", {}).get("client", ""))
