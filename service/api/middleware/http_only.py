"""ASGI middleware that concerns HTTP requests only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Protocol, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send


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
