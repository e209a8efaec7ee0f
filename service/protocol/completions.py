"""POST /v1/completions: request, response, chunk."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from service.protocol.generation import GenerationFields, PromptLogprob, Strings, TokenIds, Whole, bounds
from service.protocol.usage import Usage

FinishReason = Literal["stop", "length"]


class CompletionRequest(GenerationFields):
    echo: bool | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    logprobs: Annotated[Whole | None, bounds(-1, 20)] = None
    prompt: str | Strings | TokenIds | Annotated[list[TokenIds], Field(fail_fast=True)]


class CompletionLogprobs(BaseModel):
    """One entry per token; null for a prompt's first token, which has no prediction. text_offset: characters before the
    token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None


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
    logprobs: CompletionLogprobs | None
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
