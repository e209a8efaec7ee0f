"""API keys: who may call, and who it was."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.scope import header_of, http_only
from service.errors import AuthenticationFailed

_OPEN_PATHS = frozenset({"/health", "/ready", "/ping", "/"})


class BearerAuth:
    """Lets through who has one of the keys; health, readiness, the playground's page and, by choice, metrics are
    open. No keys: all is open.

    keys: each KEY or NAME:KEY. The name stands for the client in shares, traces and the access log; a key without one
    is known by the beginning of its digest.

    Decides on `scope["path"]`, never on a URL put together from headers. Keys are looked up by their digests, so the
    time that takes tells nothing of a key, and does not grow with their number.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str], guards_metrics: bool = False) -> None:
        self._app = app
        self._open_paths = _OPEN_PATHS if guards_metrics else _OPEN_PATHS | {"/metrics"}
        self._name_of: dict[bytes, str] = {}
        for entry in keys:
            name, _, key = entry.rpartition(":")
            digest = hashlib.sha256(key.encode()).digest()
            self._name_of[digest] = name or digest.hex()[:16]

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._name_of and scope["path"] not in self._open_paths:
            scope.setdefault("state", {})["client"] = self._check(header_of(scope, b"authorization"))
        await self._app(scope, receive, send)

    def _check(self, authorization: str) -> str:
        """The name of the key's owner."""
        scheme, _, key = authorization.partition(" ")
        digest = hashlib.sha256(key.strip().encode()).digest()
        name = self._name_of.get(digest)
        if scheme.lower() != "bearer" or name is None:
            raise AuthenticationFailed("Incorrect or missing API key.")
        return name
