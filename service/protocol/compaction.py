"""POST /v1/responses/compact: request and response."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from service.protocol.generation import Members, WireRequest
from service.protocol.responses import InputItem, ResponseUsage


class CompactRequest(WireRequest):
    """A field that is null is as if it were not there."""

    model: str | None = None
    input: str | Members[InputItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    request_id: str | None = None


class CompactedResponse(BaseModel):
    """output: the messages of the user and of the system, as they were, and then the `compaction` item, to be the
    input of what follows."""

    id: str
    object: Literal["response.compaction"] = "response.compaction"
    created_at: int
    output: list[dict[str, Any]]
    usage: ResponseUsage
