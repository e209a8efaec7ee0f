"""Wire shapes of /v1/files."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

UploadPurpose = Literal["fine-tune", "batch"]
Purpose = Literal["fine-tune", "batch", "fine-tune-results", "batch_output"]


class FileObject(BaseModel):
    """created_at, expires_at: Unix seconds."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"
    status_details: str | None = None


class FileList(BaseModel):
    object: Literal["list"] = "list"
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedFile(BaseModel):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True
