"""POST /v1/chat/completions: request, response, chunk."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel

from service.protocol.generation import GenerationFields, Members, PromptLogprob, Whole, WireRequest, bounds
from service.protocol.usage import Usage

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]


class ContentPart(WireRequest):
    type: str
    text: str | None = None


class CalledFunction(WireRequest):
    """`arguments` is JSON as text: the model wrote it, so it need not be valid. Some clients send the object itself."""

    name: str
    arguments: str | dict[str, Any]


class ToolCall(WireRequest):
    id: str | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(WireRequest):
    """role: OpenAI's, or one that the model's template knows. reasoning, reasoning_content: the same, in vLLM's and in
    DeepSeek's spelling. function_call: the one call, in the form before tools."""

    role: str
    content: str | Members[ContentPart] | None = None
    name: str | None = None
    tool_calls: Members[ToolCall] | None = None
    tool_call_id: str | None = None
    function_call: CalledFunction | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class FunctionDefinition(WireRequest):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(WireRequest):
    type: Literal["function"]
    function: FunctionDefinition


class ChatOptions(WireRequest):
    """What a chat prompt has besides the messages. functions, function_call: the older form of tools and
    tool_choice."""

    tools: Members[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: Members[FunctionDefinition] | None = None
    function_call: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Members[dict[str, str]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


class ChatPromptFields(ChatOptions):
    """The fields that make up a chat prompt; /tokenize takes the same."""

    messages: Members[ChatMessage]


class ChatCallFields(ChatOptions, GenerationFields):
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole | None, bounds(-1, 20)] = None
    echo: bool | None = None
    include_reasoning: bool | None = None
    separate_reasoning: bool | None = None


class ChatRequest(ChatPromptFields, ChatCallFields):
    """One conversation to be answered."""


class ChatBatchRequest(ChatCallFields):
    """Several conversations with the same parameters, each answered by one choice, as in vLLM."""

    messages: Members[Members[ChatMessage]]


class TopLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    content: list[TokenLogprob]
    refusal: None = None


class MadeFunction(BaseModel):
    name: str
    arguments: str


class MadeToolCall(BaseModel):
    id: str
    type: Literal["function"] = "function"
    function: MadeFunction


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[MadeToolCall] | None = None
    function_call: MadeFunction | None = None


class ChatChoice(BaseModel):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatResponse(BaseModel):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str | None = None
    prompt_logprobs: list[dict[str, PromptLogprob] | None] | None = None
    prompt_token_ids: list[int] | None = None


class FunctionDelta(BaseModel):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(BaseModel):
    """The first delta of a call has its id, type and name; the others only have more of its arguments."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionDelta


class ChatDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] | None = None
    function_call: FunctionDelta | None = None


class ChatChunkChoice(BaseModel):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    token_ids: list[int] | None = None


class ChatChunk(BaseModel):
    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str | None
    choices: list[ChatChunkChoice]
    prompt_token_ids: list[int] | None = None
    usage: Usage | None = None
