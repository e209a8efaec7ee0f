"""POST /v1/completions: request, response, chunk."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.protocol.generation import GenerationFields, Strings, TokenIds
from service.protocol.usage import Usage

FinishReason = Literal["stop", "length"]


class CompletionRequest(GenerationFields):
    echo: bool | None = None
    prompt: str | Strings | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: None = None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(BaseModel):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[CompletionChoice]
    usage: Usage
    service_tier: str | None = None


class CompletionChunkChoice(BaseModel):
    index: int
    text: str
    logprobs: None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionChunk(BaseModel):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[CompletionChunkChoice]
    usage: Usage | None = None
