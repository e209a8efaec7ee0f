"""The endpoints that use the engine. This one list is read by the routes, the limit per key and the API's
description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from service.api.context import ApiContext
from service.api.endpoints.chat_batch import ChatBatch
from service.api.endpoints.chat_completions import ChatCompletions
from service.api.endpoints.compaction import Compaction
from service.api.endpoints.completions import Completions
from service.api.endpoints.embeddings import Embeddings
from service.api.endpoints.messages import Messages
from service.api.endpoints.responses import Responses
from service.api.messages_errors import MESSAGES_PATH
from service.protocol.chat import ChatBatchRequest, ChatChunk, ChatRequest, ChatResponse
from service.protocol.compaction import CompactedResponse, CompactRequest
from service.protocol.completions import CompletionChunk, CompletionRequest, CompletionResponse
from service.protocol.embeddings import EmbeddingRequest, EmbeddingResponse
from service.protocol.error_body import ErrorBody
from service.protocol.messages import Message, MessageEvent, MessagesRequest
from service.protocol.messages_error import MessagesErrorBody
from service.protocol.responses import ResponseBody, ResponseEvent, ResponsesRequest

CHAT_BATCH_PATH = "/v1/chat/completions/batch"
COMPACT_PATH = "/v1/responses/compact"


class Creates(Protocol):
    """An endpoint whose POST is answered by the engine."""

    async def create(self, http: Request) -> Response: ...


@dataclass(frozen=True, slots=True)
class GeneratingEndpoint:
    """All fields but `make` are also for the description. chunk: the content of one event of a stream; None: nothing is
    streamed. error: the body of a refusal. names_events: each event has its type before its data, and the last one
    is not [DONE]."""

    path: str
    make: Callable[[ApiContext], Creates]
    summary: str
    request: type[BaseModel]
    response: type[BaseModel]
    chunk: type[BaseModel] | None
    error: type[BaseModel] = ErrorBody
    names_events: bool = False


GENERATING = (
    GeneratingEndpoint(
        "/v1/completions", Completions, "Continue a text.", CompletionRequest, CompletionResponse, CompletionChunk
    ),
    GeneratingEndpoint("/v1/chat/completions", ChatCompletions, "Answer a chat.", ChatRequest, ChatResponse, ChatChunk),
    GeneratingEndpoint(CHAT_BATCH_PATH, ChatBatch, "Answer several chats.", ChatBatchRequest, ChatResponse, None),
    GeneratingEndpoint("/v1/embeddings", Embeddings, "Embed texts.", EmbeddingRequest, EmbeddingResponse, None),
    GeneratingEndpoint(
        "/v1/responses",
        Responses,
        "Answer a conversation.",
        ResponsesRequest,
        ResponseBody,
        ResponseEvent,
        names_events=True,
    ),
    GeneratingEndpoint(
        COMPACT_PATH, Compaction, "Make a conversation shorter.", CompactRequest, CompactedResponse, None
    ),
    GeneratingEndpoint(
        MESSAGES_PATH,
        Messages,
        "Answer a chat, as Anthropic's API does.",
        MessagesRequest,
        Message,
        MessageEvent,
        MessagesErrorBody,
        names_events=True,
    ),
)
_NOT_IN_BATCHES = (MESSAGES_PATH, COMPACT_PATH, CHAT_BATCH_PATH)
BATCH_ENDPOINTS = tuple(endpoint.path for endpoint in GENERATING if endpoint.path not in _NOT_IN_BATCHES)
"""The endpoints that OpenAI allows in batches."""
PATHS = frozenset(endpoint.path for endpoint in GENERATING)
