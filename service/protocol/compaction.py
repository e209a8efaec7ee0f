"""POST /v1/responses/compact: request and response."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.protocol.generation import Members, WireRequest
from service.protocol.responses import InputItem, ResponseUsage


class CompactRequest(WireRequest):
    """A field that is null is the same as a missing one."""

    model: str | None = None
    input: str | Members[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    request_id: str | None = None


class CompactedResponse(BaseModel):
    """output: the user's and system messages, unchanged, and then the `compaction` item; together they are the input of
    the next call."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage
