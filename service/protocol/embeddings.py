"""POST /v1/embeddings: request and response."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.protocol.generation import Strings, TokenIds, Whole, WireRequest, bounds
from service.protocol.usage import PromptTokensDetails


class EmbeddingRequest(WireRequest):
    """A field that is null is the same as a missing one."""

    model: str | None = None
    input: str | Strings | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[Whole | None, bounds(1)] = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    user: str | None = None


class EmbeddingObject(BaseModel):
    """embedding: numbers, or little-endian fp32 in base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(BaseModel):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class EmbeddingResponse(BaseModel):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[EmbeddingObject]
    usage: EmbeddingUsage
