"""Wire shapes of /v1/batches."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field, RootModel, StringConstraints

from service.protocol.generation import WireRequest

Metadata = Annotated[
    dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
    Field(max_length=16),
]


class OutputExpiresAfter(WireRequest):
    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=30 * 24 * 3600)


class BatchRequest(WireRequest):
    """completion_window: a whole number of s, m, h or d."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Metadata | None = None
    output_expires_after: OutputExpiresAfter | None = None


class BatchError(BaseModel):
    """line: of the input file, from 1."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchError]


class RequestCounts(BaseModel):
    total: int
    completed: int
    failed: int


class BatchObject(BaseModel):
    """Times are Unix seconds."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    metadata: dict[str, str] | None


class BatchList(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchAnswer(BaseModel):
    """body: the endpoint's answer."""

    status_code: int
    request_id: str
    body: dict[str, object]


class NoAnswer(BaseModel):
    code: str
    message: str


class BatchResult(BaseModel):
    """A line of an output or error file."""

    id: str
    custom_id: str
    response: BatchAnswer | None
    error: NoAnswer | None


class BatchEvent(RootModel[BatchObject | BatchResult]):
    """One event of a batch's stream."""
