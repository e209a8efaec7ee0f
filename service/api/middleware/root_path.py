"""A path prefix of a proxy, which may or may not remove it before it passes a request on."""

from __future__ import annotations

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.scope import http_only


class RootPath:
    """Removes `root_path` from paths that begin with it, so that nothing behind it sees it. The outermost
    middleware."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    @http_only
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == self._root_path:  # the page's own paths are relative to this directory
            await RedirectResponse(f"{self._root_path}/")(scope, receive, send)
            return
        if scope["path"].startswith(f"{self._root_path}/"):
            scope["path"] = scope["path"].removeprefix(self._root_path)
        await self._app(scope, receive, send)
