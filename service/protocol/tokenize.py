"""POST /tokenize and /detokenize."""

from __future__ import annotations

from pydantic import BaseModel

from service.protocol.chat import ChatPromptFields
from service.protocol.generation import TokenIds, WireRequest


class TokenizeRequest(WireRequest):
    """Text, tokenized as a completion's prompt."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizeChatRequest(ChatPromptFields):
    """Messages, tokenized as a chat's prompt."""

    model: str | None = None
    return_token_strs: bool | None = None


class TokenizeResponse(BaseModel):
    """token_strs: the tokens as the vocabulary spells them, if asked for; else null."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(WireRequest):
    model: str | None = None
    tokens: TokenIds


class DetokenizeResponse(BaseModel):
    """The text of the tokens, with special ones."""

    prompt: str
