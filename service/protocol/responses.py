"""POST /v1/responses and the routes of stored responses: request, response, events of a stream."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from service.protocol.generation import (
    Members,
    SamplingFields,
    Strings,
    StructuredOutputs,
    TokenIds,
    Whole,
    WireRequest,
    bounds,
)

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputPart(WireRequest):
    """A part of a message, of a call's output or of reasoning. `annotations` and `logprobs` come back from answers."""

    type: str
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class InputItem(WireRequest):
    """An item of a conversation. Its type says which fields it needs; without a type it is a message."""

    type: str | None = None
    id: str | None = None
    status: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    phase: str | None = None
    content: str | Members[InputPart] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None
    output: str | Members[InputPart] | None = None
    summary: Members[InputPart] | None = None
    encrypted_content: str | None = None


class InputFormat(WireRequest):
    """What the input of a custom tool must be."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class ResponseTool(WireRequest):
    """A function, a custom tool, a namespace of them, or a tool that OpenAI's own servers would run."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: InputFormat | None = None
    tools: Members[ResponseTool] | None = None


class TextFormat(WireRequest):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(WireRequest):
    format: TextFormat | None = None
    verbosity: str | None = None


class ReasoningOptions(WireRequest):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseStreamOptions(WireRequest):
    include_obfuscation: bool | None = None


class ResponsesRequest(SamplingFields):
    """A field that is null is the same as a missing one. The fields after `user` are vLLM's and our own, as in a
    chat."""

    model: str | None = None
    input: str | Members[InputItem] | None = None
    instructions: str | None = None
    tools: Members[ResponseTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Whole | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: Strings | None = None
    max_output_tokens: Annotated[Whole | None, bounds(1)] = None
    top_logprobs: Annotated[Whole | None, bounds(-1, 20)] = None
    truncation: Literal["auto", "disabled"] | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    store: bool | None = None
    previous_response_id: str | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None
    seed: Whole | None = None
    deterministic: bool | None = None
    thinking_token_budget: Annotated[Whole | None, bounds(-1)] = None
    stop: str | Strings | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: dict[str, float] | None = None
    bad_words: Strings | None = None
    allowed_token_ids: TokenIds | None = None
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    priority: Whole | None = None


class OutputLogprob(BaseModel):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[dict[str, Any]]


class OutputPart(BaseModel):
    """`output_text` of a message, with annotations (always empty) and logprobs, or `reasoning_text`."""

    type: Literal["output_text", "reasoning_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[OutputLogprob] | None = None


class OutputItem(BaseModel):
    """A message, reasoning or a call; its type says which fields it has."""

    id: str
    type: Literal["message", "reasoning", "function_call", "custom_tool_call"]
    status: Literal["in_progress", "completed", "incomplete"]
    role: Literal["assistant"] | None = None
    content: list[OutputPart] | None = None
    summary: list[Any] | None = None
    encrypted_content: None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None


class InputTokensDetails(BaseModel):
    """cache_write_tokens: OpenAI bills them; here they are not counted, and always 0."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(BaseModel):
    reasoning_tokens: int


class ResponseUsage(BaseModel):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFault(BaseModel):
    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class IncompleteDetails(BaseModel):
    reason: Literal["max_output_tokens"]


class ResponseBody(BaseModel):
    """The response: the request's parameters and the output."""

    id: str
    object: Literal["response"]
    created_at: int
    model: str
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    user: str | None
    status: Status
    completed_at: int | None
    error: ResponseFault | None
    incomplete_details: IncompleteDetails | None
    output: list[OutputItem]
    usage: ResponseUsage | None


class ResponseEvent(BaseModel):
    """An event of a stream; its type says which fields it has."""

    type: str
    sequence_number: int
    response: ResponseBody | None = None
    output_index: int | None = None
    item: OutputItem | None = None
    item_id: str | None = None
    content_index: int | None = None
    part: OutputPart | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: list[OutputLogprob] | None = None
    arguments: str | None = None
    input: str | None = None
    name: str | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None


class InputTokenCount(BaseModel):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int


class InputItemList(BaseModel):
    """A page of the items that a response was made from."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class DeletedResponse(BaseModel):
    id: str
    object: Literal["response"]
    deleted: bool
