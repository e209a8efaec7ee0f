"""A limit on the concurrent requests of one API key, so that no client takes all the capacity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.scope import client_of, http_only
from service.errors import RateLimited


class KeyLimit:
    """Pure ASGI middleware, inside the key check. A request counts until its answer is complete or its client has
    disconnected. A request beyond the limit is refused before its body is read.

    most: requests to `paths`, which generate, of all keys with the same name together.
    """

    def __init__(self, app: ASGIApp, most: int, paths: Set[str]) -> None:
        self._app = app
        self._most = most
        self._paths = paths
        self._open: Counter[str] = Counter()

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        client = client_of(scope)
        if not client or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        if self._open[client] >= self._most:
            raise RateLimited(f"This API key has {self._most} requests running or waiting, which is its limit.")
        self._open[client] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]
