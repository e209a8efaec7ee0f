"""The form of an upload: its fields, and its file, which is written to disk as it arrives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, get_args

from starlette.requests import Request

from service.api.calls.json_lines import JsonLines
from service.api.calls.multipart import MultipartReader, PartBegin, PartData, PartEnd, PartEvent
from service.api.calls.token_checks import quote
from service.config import ApiConfig
from service.errors import InvalidRequest
from service.protocol.files import UploadPurpose
from service.storage.upload import Upload

PURPOSES: Final = get_args(UploadPurpose)
_FIELDS = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})
_MAX_FIELD_BYTES = 1024
_MAX_FILENAME = 255
_WRITE_BYTES = 1024 * 1024
LEAST_EXPIRY_S, MOST_EXPIRY_S = 3600, 30 * 24 * 3600
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")


class FileForm:
    """Reads the form. `purpose`, `filename` and `expires_after_s` are set when `read` has returned.

    The file goes to `upload` in pieces. Each piece is checked before it is written: it must be JSON Lines.
    """

    def __init__(self, boundary: bytes, upload: Upload, config: ApiConfig) -> None:
        self._reader = MultipartReader(boundary)
        self._upload = upload
        self._lines = JsonLines(config.max_line_bytes)
        self._part: PartBegin | None = None
        self._unwritten = bytearray()
        self._value = bytearray()
        self._fields: dict[str, str] = {}
        self._filename: str | None = None

    async def read(self, http: Request) -> None:
        """Reads the whole body. Raises InvalidRequest, StorageFull, StorageUnavailable, ClientDisconnect."""
        async for piece in http.stream():
            for event in self._reader.feed(piece):
                await self._take(event)
        self._reader.finish()
        if self._filename is None:
            raise InvalidRequest("file is required.", param="file", code="missing_required_parameter")
        self._check_purpose()
        self._check_expiry()

    @property
    def purpose(self) -> str:
        return self._fields["purpose"]

    @property
    def filename(self) -> str:
        assert self._filename is not None
        return self._filename

    @property
    def expires_after_s(self) -> int | None:
        seconds = self._fields.get("expires_after[seconds]")
        return None if seconds is None else int(seconds)

    async def _take(self, event: PartEvent) -> None:
        match event:
            case PartBegin():
                self._begin(event)
            case PartData(data) if self._is_file:
                self._unwritten += data
                if len(self._unwritten) >= _WRITE_BYTES:
                    await self._write()
            case PartData(data):
                self._value += data
                if len(self._value) > _MAX_FIELD_BYTES:
                    raise InvalidRequest(f"{self._name} may have at most {_MAX_FIELD_BYTES} bytes.", param=self._name)
            case PartEnd() if self._is_file:
                await self._write()
                await self._upload.write(b"", lambda _: self._lines.finish())
            case PartEnd():
                self._fields[self._name] = self._value.decode(errors="replace")

    def _begin(self, part: PartBegin) -> None:
        self._part = part
        name = self._name
        if name in self._fields or (name == "file" and self._filename is not None):
            raise InvalidRequest(f"{name} is given twice.", param=name)
        if name == "file":
            if part.filename is None:
                raise InvalidRequest("file must be sent as a file, with a filename.", param="file")
            self._filename = _plain(part.filename)
        elif name not in _FIELDS:
            raise InvalidRequest(f"Unknown field {quote(name)}.", param=name, code="unknown_parameter")
        self._value.clear()

    async def _write(self) -> None:
        piece = bytes(self._unwritten)
        self._unwritten.clear()
        await self._upload.write(piece, self._lines.feed)

    @property
    def _is_file(self) -> bool:
        return self._name == "file"

    @property
    def _name(self) -> str:
        assert self._part is not None
        return self._part.name[:64]

    def _check_purpose(self) -> None:
        purpose = self._fields.get("purpose")
        if purpose is None:
            raise InvalidRequest("purpose is required.", param="purpose", code="missing_required_parameter")
        if purpose not in PURPOSES:
            raise InvalidRequest(
                f"purpose must be {' or '.join(PURPOSES)}; files for other purposes are not supported.", param="purpose"
            )

    def _check_expiry(self) -> None:
        anchor, seconds = (self._fields.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
        if anchor is None and seconds is None:
            return
        check_expiry("expires_after", {"anchor": anchor, "seconds": seconds})


def check_expiry(param: str, policy: Mapping[str, object]) -> int:
    """The seconds of an OpenAI expiration policy. InvalidRequest if it is not one."""
    if policy.get("anchor") != "created_at":
        raise InvalidRequest(f"{param}.anchor must be created_at.", param=f"{param}.anchor")
    text = str(policy.get("seconds"))
    is_number = text.isascii() and text.isdigit() and len(text) < 10
    if not (is_number and LEAST_EXPIRY_S <= int(text) <= MOST_EXPIRY_S):
        raise InvalidRequest(
            f"{param}.seconds must be between {LEAST_EXPIRY_S} and {MOST_EXPIRY_S}.", param=f"{param}.seconds"
        )
    return int(text)


def _plain(filename: str) -> str:
    """The file name without folders and control characters, of a bounded length."""
    name = _UNPRINTABLE.sub("", filename.replace("\\", "/").rpartition("/")[2]).strip()
    return name[-_MAX_FILENAME:] or "file"
