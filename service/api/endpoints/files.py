"""/v1/files: upload, list, get, read and delete. A file is visible to its own client only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import orjson
from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.file_content import FileContent
from service.api.calls.file_form import FileForm
from service.api.calls.json_body import check_not_encoded
from service.api.calls.multipart import boundary_of
from service.api.calls.page_query import page_query
from service.api.context import ApiContext
from service.api.scope import client_of, header_of
from service.errors import InvalidRequest, Overloaded
from service.protocol.files import DeletedFile, FileObject, Purpose
from service.storage.file_table import StoredFile

MOST_FILES_OF_A_PAGE = 10_000
_RETRY_AFTER_S = 5.0


class Files:
    def __init__(self, context: ApiContext) -> None:
        self._config = context.config
        self._files = context.storage.files
        self._texts = context.texts
        self._num_uploads = 0

    async def create(self, http: Request) -> Response:
        """The file's bytes are written to disk as they arrive."""
        boundary = boundary_of(header_of(http.scope, b"content-type"))
        check_not_encoded(header_of(http.scope, b"content-encoding"))
        length = header_of(http.scope, b"content-length")
        known_bytes = int(length) if length.isascii() and length.isdigit() else 0
        with self._seat():
            upload = await self._files.upload(client_of(http.scope), known_bytes)
            try:
                form = FileForm(boundary, upload, self._config)
                await form.read(http)
                file = await upload.commit(form.purpose, form.filename, form.expires_after_s)
            finally:
                await upload.discard()
        return Response(file_object(file).model_dump_json(), media_type="application/json")

    async def list(self, http: Request) -> Response:
        purpose = http.query_params.get("purpose")
        if purpose is not None and purpose not in get_args(Purpose):
            raise InvalidRequest(f"purpose must be one of {', '.join(get_args(Purpose))}.", param="purpose")
        query = page_query(http, most=MOST_FILES_OF_A_PAGE, default=MOST_FILES_OF_A_PAGE)
        files, has_more = await self._files.list(client_of(http.scope), purpose, query)

        def written() -> bytes:
            data = [file_object(file).model_dump() for file in files]
            ids = {"first_id": data[0]["id"] if data else None, "last_id": data[-1]["id"] if data else None}
            return orjson.dumps({"object": "list", "data": data, **ids, "has_more": has_more})

        return Response(await self._texts.run(len(files) * _CHARACTERS, written), media_type="application/json")

    async def get(self, http: Request) -> Response:
        return Response(file_object(await self._find(http)).model_dump_json(), media_type="application/json")

    async def content(self, http: Request) -> Response:
        file = await self._find(http)
        path = self._files.path_of(file)
        opened = await self._files.in_thread(lambda: path.open("rb"))
        return FileContent(opened, file, self._files.in_thread)

    async def delete(self, http: Request) -> Response:
        file_id = http.path_params["file_id"]
        await self._files.delete(file_id, client_of(http.scope))
        return Response(DeletedFile(id=file_id).model_dump_json(), media_type="application/json")

    async def _find(self, http: Request) -> StoredFile:
        return await self._files.get(http.path_params["file_id"], client_of(http.scope))

    @contextmanager
    def _seat(self) -> Iterator[None]:
        if self._num_uploads >= self._config.max_uploads:
            raise Overloaded(
                f"{self._num_uploads} files are being uploaded, which is the limit. Try again later.",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._num_uploads += 1
        try:
            yield
        finally:
            self._num_uploads -= 1


_CHARACTERS = 256
"""The approximate length of a file's entry in a list."""


def file_object(file: StoredFile) -> FileObject:
    return FileObject.model_validate(
        {
            "id": file.file_id,
            "bytes": file.num_bytes,
            "created_at": file.created_at,
            "expires_at": file.expires_at,
            "filename": file.filename,
            "purpose": file.purpose,
        }
    )
