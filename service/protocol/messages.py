"""POST /v1/messages and /v1/messages/count_tokens, Anthropic's API: requests, answer, events of a stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel

from service.protocol.generation import Members, Strings, Whole, WireRequest, bounds

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]


class Cacheable(WireRequest):
    """cache_control: where the client wants a cache breakpoint; here the prefix cache matches without it."""

    cache_control: dict[str, Any] | None = None


class TextPart(Cacheable):
    """A part of a system prompt or of a tool's result."""

    type: str
    text: str | None = None


class ContentBlock(Cacheable):
    """One shape for all types of block; `api` knows which fields a type needs."""

    type: str
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | Members[TextPart] | None = None
    is_error: bool | None = None


class InputMessage(WireRequest):
    role: Literal["user", "assistant", "system"]
    content: str | Members[ContentBlock]


class MessagesTool(Cacheable):
    """A client tool; the types of Anthropic's server tools are refused."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None


class MessagesToolChoice(WireRequest):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(WireRequest):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class OutputFormat(WireRequest):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(WireRequest):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Metadata(WireRequest):
    user_id: str | None = None


class MessagesPromptFields(Cacheable):
    """The fields that make up the prompt. output_format: the older place of `output_config.format`.
    chat_template_kwargs: as in a chat."""

    model: str
    messages: Members[InputMessage]
    system: str | Members[TextPart] | None = None
    tools: Members[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(MessagesPromptFields):
    """A field that is null is the same as a missing one. service_tier: has no effect, as there is only one. seed,
    deterministic: as in a chat."""

    max_tokens: Annotated[int, bounds(0)]
    stop_sequences: Strings | None = None
    stream: bool | None = None
    temperature: Annotated[float | None, bounds(0, 2)] = None
    top_p: Annotated[float | None, bounds(0, 1)] = None
    top_k: Annotated[int | None, bounds(-1)] = None
    seed: Whole | None = None
    deterministic: bool | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None


class CountTokensRequest(MessagesPromptFields):
    """A prompt that is only counted."""


class TokensCount(BaseModel):
    input_tokens: int


class TextBlock(BaseModel):
    type: Literal["text"] = "text"
    text: str


class ThinkingBlock(BaseModel):
    """signature: a digest of the thinking; it is not checked when a client sends it back."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str


class ToolUseBlock(BaseModel):
    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any]


class OutputTokensDetails(BaseModel):
    thinking_tokens: int


class MessagesUsage(BaseModel):
    """A prompt's tokens are `input_tokens` plus `cache_read_input_tokens`."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: OutputTokensDetails | None = None


class Message(BaseModel):
    """stop_reason: null in the event that begins a stream."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessagesUsage


class MessageStart(BaseModel):
    type: Literal["message_start"]
    message: Message


class ContentBlockStart(BaseModel):
    type: Literal["content_block_start"]
    index: int
    content_block: TextBlock | ThinkingBlock | ToolUseBlock


class TextBlockDelta(BaseModel):
    type: Literal["text_delta"]
    text: str


class InputJsonDelta(BaseModel):
    type: Literal["input_json_delta"]
    partial_json: str


class ThinkingDelta(BaseModel):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(BaseModel):
    type: Literal["signature_delta"]
    signature: str


class ContentBlockDelta(BaseModel):
    type: Literal["content_block_delta"]
    index: int
    delta: TextBlockDelta | InputJsonDelta | ThinkingDelta | SignatureDelta


class ContentBlockStop(BaseModel):
    type: Literal["content_block_stop"]
    index: int


class MessageEnd(BaseModel):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(BaseModel):
    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessagesUsage


class MessageStop(BaseModel):
    type: Literal["message_stop"]


class Ping(BaseModel):
    type: Literal["ping"]


class MessageEvent(
    RootModel[
        MessageStart | ContentBlockStart | ContentBlockDelta | ContentBlockStop | MessageDelta | MessageStop | Ping
    ]
):
    """The data of one event; the `event` line before it repeats its type."""
