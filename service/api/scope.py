"""An ASGI scope: what a request says of itself, and whether it is an HTTP request at all."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Protocol, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

_FIT_ID = re.compile(r"[A-Za-z0-9._\-]{1,64}")


class Wraps(Protocol):
    """A middleware: it holds the app that it stands before."""

    _app: ASGIApp


Self = TypeVar("Self", bound=Wraps)
Call = Callable[[Self, Scope, Receive, Send], Awaitable[None]]


def http_only(call: Call[Self]) -> Call[Self]:
    """For a middleware's `__call__`: whatever is no HTTP request (the app's lifespan) goes past it to the app."""

    @wraps(call)
    def pass_by(self: Self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return call(self, scope, receive, send) if scope["type"] == "http" else self._app(scope, receive, send)

    return pass_by


def header_of(scope: Scope, name: bytes) -> str:
    """The first header of this name, in lower case as servers give them; empty if there is none. No object is made for
    all of them."""
    for each, value in scope["headers"]:
        if each == name:
            text: str = value.decode("latin-1")
            return text
    return ""


def is_fit_id(text: str) -> bool:
    """Whether an id of the client's own may be repeated in headers and logs."""
    return _FIT_ID.fullmatch(text) is not None


def client_of(scope: Scope) -> str:
    """Who sent the request: a name for its API key that does not tell the key; empty on an open server."""
    return str(scope.get("state", {}).get("client", ""))
