"""GET /: a page to chat with the model. It needs no key itself; what it calls does."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

_PAGE = Path(__file__).with_name("playground.html")
_HEADERS = {
    # The page is whole: nothing may be loaded from elsewhere, and it may call nobody but this server.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Playground:
    """Read once, when it is made."""

    def __init__(self) -> None:
        self._page = _PAGE.read_bytes()

    async def get(self, http: Request) -> Response:
        return Response(self._page, headers=_HEADERS, media_type="text/html")
