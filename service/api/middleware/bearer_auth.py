"""API keys: who may call, and which client it was."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.scope import header_of, http_only
from service.errors import AuthenticationFailed

_OPEN_PATHS = frozenset({"/health", "/ready", "/ping", "/"})
_OPEN_FOLDER = "/playground/"


class BearerAuth:
    """Requires an API key. Health, readiness, the playground's files and, unless configured otherwise, metrics are
    open. Without keys everything is open.

    keys: each KEY or NAME:KEY. The name identifies the client in shares, traces and the access log; a key without a
        name is identified by the beginning of its digest.
    admin_keys: the same for operators; they open everything, and set `is_admin` in the scope's state.

    A key comes as `Authorization: Bearer`, or in Anthropic's header, `x-api-key`; of two different ones, one that is
    known counts.

    Decides by `scope["path"]`, never by a URL built from headers. Keys are looked up by their digests, so the time of a
    lookup says nothing about a key and does not grow with their number.
    """

    def __init__(
        self, app: ASGIApp, keys: Sequence[str], admin_keys: Sequence[str] = (), guards_metrics: bool = False
    ) -> None:
        self._app = app
        self._open_paths = _OPEN_PATHS if guards_metrics else _OPEN_PATHS | {"/metrics"}
        self._name_of = _names_by_digest(keys)
        self._admin_of = _names_by_digest(admin_keys)

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (self._name_of or self._admin_of) and not self._is_open(scope["path"]):
            self._note_client(scope)
        await self._app(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or path.startswith(_OPEN_FOLDER)

    def _note_client(self, scope: Scope) -> None:
        """Notes the client in the scope's state. AuthenticationFailed if keys are required and this is not one of
        them."""
        digests = (_digest_of_bearer(header_of(scope, b"authorization")), _digest(header_of(scope, b"x-api-key")))
        admin = _first_known(self._admin_of, digests)
        name = _first_known(self._name_of, digests) if admin is None else admin
        if name is None and self._name_of:
            raise AuthenticationFailed("Incorrect or missing API key.")
        if name is not None:
            scope.setdefault("state", {}).update(client=name, is_admin=admin is not None)


def _names_by_digest(entries: Sequence[str]) -> Mapping[bytes, str]:
    names = {}
    for entry in entries:
        name, _, key = entry.rpartition(":")
        digest = _digest(key)
        names[digest] = name or digest.hex()[:16]
    return names


def _first_known(names: Mapping[bytes, str], digests: Sequence[bytes]) -> str | None:
    return next((names[digest] for digest in digests if digest in names), None)


def _digest_of_bearer(authorization: str) -> bytes:
    """The digest of no key, if the header has no bearer key."""
    scheme, _, key = authorization.partition(" ")
    return _digest(key.strip()) if scheme.lower() == "bearer" else b""


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
