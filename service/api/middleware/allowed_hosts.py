"""The host names by which this server may be called: protection against DNS rebinding.

A browser lets a page call the server that it came from. The owner of the page's name can point it to another address,
say 127.0.0.1, after the page was loaded (DNS rebinding). Then the page has this server's origin, CORS does not apply,
and a server without keys would answer it. But the page still calls by its own name, which the browser writes into
`Host`. A page that does not use DNS rebinding can neither read an answer nor send JSON, for which browsers require
CORS.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.scope import header_of, http_only
from service.errors import HostNotAllowed

_OPEN_PATHS = frozenset({"/health", "/ready", "/ping"})
"""Load balancers and probes may ask these by any name."""


class AllowedHosts:
    """Refuses a request unless its `Host` is one of `names`, `localhost`, an IP address (which cannot be rebound), or
    empty (which no browser sends).

    names: each a host without a port; `*.example.com` stands for all names below it.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self._app = app
        lower = [name.lower() for name in (*names, "localhost", "*.localhost")]
        self._names = frozenset(name for name in lower if not name.startswith("*."))
        self._endings = tuple(name[1:] for name in lower if name.startswith("*."))

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in _OPEN_PATHS:
            self._check(header_of(scope, b"host"))
        await self._app(scope, receive, send)

    def _check(self, header: str) -> None:
        host = _without_port(header).lower().removesuffix(".")
        if not header or host in self._names or host.endswith(self._endings) or _is_address(host):
            return
        raise HostNotAllowed(f"The host {host[:100]!r} is not allowed; --allowed-hosts lists those that are.")


def _without_port(host: str) -> str:
    """[::1]:8000 -> ::1"""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
