"""GET / and /playground/{name}: a page to chat with the model. The page needs no key, but its calls do."""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

_FOLDER = Path(__file__).parents[1] / "playground"
_PAGE = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".md": "text/markdown",
    ".txt": "text/plain",
}
_HEADERS = {
    # Nothing may be loaded from elsewhere, the page may call only this server, and only the sanitizer turns
    # text into elements.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Browsers revalidate their copy each time: an update is seen at once, at no other cost.
    "Cache-Control": "no-cache",
}


class Playground:
    """The page and its files, read once at construction. Names are looked up among them, never on the disk."""

    def __init__(self) -> None:
        files = [file for file in sorted(_FOLDER.rglob("*")) if file.suffix in _MEDIA_TYPES]
        self._files = {file.relative_to(_FOLDER).as_posix(): _StaticFile(file) for file in files}

    async def page(self, http: Request) -> Response:
        return self._files[_PAGE].answer(http)

    async def file(self, http: Request) -> Response:
        file = self._files.get(http.path_params["name"])
        if file is None:
            raise HTTPException(HTTPStatus.NOT_FOUND)
        return file.answer(http)


class _StaticFile:
    def __init__(self, file: Path) -> None:
        self._content = file.read_bytes()
        self._media_type = _MEDIA_TYPES[file.suffix]
        self._etag = f'"{hashlib.sha256(self._content).hexdigest()[:32]}"'

    def answer(self, http: Request) -> Response:
        headers = {**_HEADERS, "ETag": self._etag}
        if http.headers.get("if-none-match") == self._etag:
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
        return Response(self._content, headers=headers, media_type=self._media_type)
