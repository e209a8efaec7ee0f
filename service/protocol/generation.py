"""The request fields that completions and chat completions share."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

TokenIds = Annotated[list[int], Field(fail_fast=True)]
Strings = Annotated[list[str], Field(fail_fast=True)]
Member = TypeVar("Member")
Members = Annotated[list[Member], Field(fail_fast=True)]
"""Validation ends at the first member that does not fit: only one is named, and each would cost a microsecond and 100
bytes."""

_MOST_EXACT = 2.0**53
"""Beyond it, a float does not determine the integer that was meant."""
_LEAST = -(2**63)


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        if abs(value) > _MOST_EXACT:  # it was written with an exponent, or does not fit 64 bits
            raise PydanticCustomError("whole", f"an integer must be from {_LEAST} to {-_LEAST - 1}, and in digits")
        return int(value)
    return value


Whole = Annotated[int, BeforeValidator(_whole)]
"""An integer in the sense of JSON Schema: 5.0 is one, too."""


def bounds(low: float, high: float | None = None) -> Any:
    """A number's range, as the OpenAPI description states it. `api` checks it, since it also knows the server's
    limits."""
    return Field(json_schema_extra={"minimum": low} if high is None else {"minimum": low, "maximum": high})


class WireRequest(BaseModel):
    """Types are exact (no "1" for 1, no true for 1), but 5.0 is 5 where an integer is meant. Undeclared fields are kept
    apart by name."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class StreamOptions(WireRequest):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(WireRequest):
    """`schema` is what counts; the output satisfies it whether `strict` or not."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(WireRequest):
    """schema: for `json_object`, as in llama.cpp's server and Together.

    format, structures, triggers: for `structural_tag`, as in vLLM; structures and triggers are its older form. Their
    members are checked after their number.
    """

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    format: dict[str, Any] | None = None
    structures: list[Any] | None = None
    triggers: list[Any] | None = None


class StructuredOutputs(WireRequest):
    """vLLM's spelling of the constraints; at most one of them, and the white space allowed in JSON."""

    json_: str | dict[str, Any] | bool | None = Field(None, alias="json")
    regex: str | None = None
    choice: Strings | None = None
    grammar: str | None = None
    structural_tag: str | dict[str, Any] | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None


class SamplingFields(WireRequest):
    """Sampling parameters that the engine takes unchanged, under its own names (core's SamplingParams).

    A new one needs only a line here: it is checked against its bounds, null means the model's default or else the
    engine's, and a beam search refuses it unless it has no effect.
    """

    temperature: Annotated[float | None, bounds(0, 2)] = None
    top_p: Annotated[float | None, bounds(0, 1)] = None
    top_k: Annotated[Whole | None, bounds(-1)] = None
    min_p: Annotated[float | None, bounds(0, 1)] = None
    presence_penalty: Annotated[float | None, bounds(-2, 2)] = None
    frequency_penalty: Annotated[float | None, bounds(-2, 2)] = None
    repetition_penalty: Annotated[float | None, bounds(0.01, 100)] = None  # beyond them logits overflow
    min_tokens: Annotated[Whole | None, bounds(0)] = None


class GenerationFields(SamplingFields):
    """A field that is null is the same as a missing one."""

    model: str | None = None
    max_tokens: Annotated[Whole | None, bounds(0)] = None
    max_completion_tokens: Annotated[Whole | None, bounds(0)] = None
    logit_bias: dict[str, float] | None = None
    bad_words: Strings | None = None
    allowed_token_ids: TokenIds | None = None
    seed: Whole | None = None
    deterministic: bool | None = None
    thinking_token_budget: Annotated[Whole | None, bounds(-1)] = None
    n: Annotated[Whole | None, bounds(1)] = None
    best_of: Annotated[Whole | None, bounds(1)] = None
    use_beam_search: bool | None = None
    beam_width: Whole | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None
    stop: str | Strings | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    logprob_token_ids: TokenIds | None = None
    prompt_logprobs: Annotated[Whole | None, bounds(-1, 20)] = None
    skip_special_tokens: bool | None = None
    truncate_prompt_tokens: Annotated[Whole | None, bounds(-1)] = None
    truncation_side: Literal["left", "right"] | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    no_stop_trim: bool | None = None
    user: str | None = None
    request_id: str | None = None
    priority: Whole | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    cache_salt: str | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    regex: str | None = None
    choice: Strings | None = None
    grammar: str | None = None
    ebnf: str | None = None
    json_schema: str | dict[str, Any] | bool | None = None
    guided_json: str | dict[str, Any] | bool | None = None
    guided_regex: str | None = None
    guided_choice: Strings | None = None
    guided_grammar: str | None = None


class PromptLogprob(BaseModel):
    """One token at a position of the prompt, as vLLM writes it. rank: 1 for the most probable."""

    logprob: float
    rank: int
    decoded_token: str
