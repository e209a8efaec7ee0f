"""A stored file as an answer, read while it is sent."""

from __future__ import annotations

from typing import BinaryIO
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.api.disconnect import run_unless_disconnected
from service.storage.file_table import StoredFile
from service.storage.upload import InThread

_PIECE_BYTES = 256 * 1024


class FileContent(Response):
    """content: a file that is open for reading, at its beginning; closed when the answer ends, in whatever way. It is
    sent whole even if the file is deleted meanwhile. At most one piece of it is in memory."""

    def __init__(self, content: BinaryIO, file: StoredFile, in_thread: InThread) -> None:
        super().__init__(media_type="application/octet-stream")
        self.headers["content-length"] = str(file.num_bytes)
        self.headers["content-disposition"] = f"attachment; filename*=utf-8''{quote(file.filename, safe='')}"
        self._content = content
        self._in_thread = in_thread

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await run_unless_disconnected(receive, self._send(send))
        finally:
            self._content.close()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        while piece := await self._in_thread(lambda: self._content.read(_PIECE_BYTES)):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
