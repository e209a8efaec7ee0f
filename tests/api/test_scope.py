from __future__ import annotations

import asyncio

import pytest

from service.api.scope import header_of, http_only


class Noting:
    """Notes what passes it."""

    def __init__(self, app):
        self._app = app
        self.seen = []

    @http_only
    async def __call__(self, scope, receive, send):
        self.seen.append(scope["type"])
        await self._app(scope, receive, send)


@pytest.mark.parametrize(("kind", "seen"), [("http", ["http"]), ("lifespan", []), ("websocket", [])])
def test_only_http_requests_are_the_middlewares_and_all_reach_the_app_once(kind, seen):
    reached = []

    async def app(scope, receive, send):
        reached.append((scope, receive, send))

    middleware = Noting(app)
    scope, receive, send = {"type": kind}, object(), object()
    asyncio.run(middleware(scope, receive, send))
    assert middleware.seen == seen
    assert reached == [(scope, receive, send)]


HEADERS = [(b"a", b"1"), (b"b", b"\xe9"), (b"a", b"2")]


@pytest.mark.parametrize(("name", "value"), [(b"a", "1"), (b"b", "é"), (b"c", "")])
def test_the_first_header_of_a_name(name: bytes, value: str) -> None:
    assert header_of({"headers": HEADERS}, name) == value
