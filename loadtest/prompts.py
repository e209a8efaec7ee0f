"""Turns a request of a trace into the bytes of its HTTP body.

Prompts are token-exact: random ids sent as `prompt: [int]` to /v1/completions, so that every server gets the same
number of tokens whatever its tokenizer. The chat endpoint takes only text: there a prompt has one short random word per
token, which is exact to a few per cent.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import orjson

from loadtest.random_streams import random_stream
from loadtest.trace import TraceRequest

EndpointType = Literal["openai", "openai-chat"]

PATHS: Mapping[EndpointType, str] = MappingProxyType(
    {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
)

_WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "it",
    "was",
    "for",
    "on",
    "are",
    "as",
    "with",
    "his",
    "they",
)

_WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Current weather at a place",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class BodyOptions:
    """What all request bodies of a run have in common.

    Token ids are drawn from `min_token_id` (included) to `vocab_size` (excluded). `extra_body` is merged into each body
    last, so it overrides even the temperature of 0; a value of None removes the field. more_models: requests take turns
    at `model` and these. deterministic_share: share of the requests, evenly spread, that ask to be deterministic.
    """

    model: str
    endpoint_type: EndpointType = "openai"
    vocab_size: int = 1000
    min_token_id: int = 3
    ignore_eos: bool = True
    return_token_ids: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    more_models: tuple[str, ...] = ()
    deterministic_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.deterministic_share <= 1:
            raise ValueError(f"deterministic_share {self.deterministic_share} must lie in 0..1")
        if not 0 <= self.min_token_id < self.vocab_size:
            raise ValueError(f"min_token_id {self.min_token_id} must lie in 0..{self.vocab_size - 1}")

    def model_of(self, request: TraceRequest) -> str:
        """The model name in the request's body."""
        names = (self.model, *self.more_models)
        return names[request.request_id % len(names)]

    def is_deterministic(self, request: TraceRequest) -> bool:
        """Whether the request asks to be deterministic."""
        so_far, with_it = (
            request.request_id * self.deterministic_share,
            (request.request_id + 1) * self.deterministic_share,
        )
        return math.ceil(with_it) > math.ceil(so_far)


def prompt_token_ids(request: TraceRequest, options: BodyOptions) -> list[int]:
    """Ids of the request's own turn, shared prefix first. Depends only on the request and the vocabulary."""
    if request.prompt_token_ids is not None:
        return list(request.prompt_token_ids)
    prefix = _random_ids(request.prompt_seed, "prefix ids", request.prefix_group, request.prefix_len, options)
    return prefix + _random_ids(request.prompt_seed, "prompt ids", request.request_id, request.prompt_len, options)


def stand_in_output_ids(request: TraceRequest, options: BodyOptions) -> list[int]:
    """Ids for a conversation's history, in place of an answer whose ids the server did not send."""
    return _random_ids(request.prompt_seed, "output ids", request.request_id, request.output_len, options)


def request_body(request: TraceRequest, options: BodyOptions, history: Sequence[int] = ()) -> bytes:
    """The JSON body. history: ids of the conversation so far (completions only). Raises ValueError if the endpoint
    cannot carry the request."""
    body: dict[str, Any] = {
        "model": options.model_of(request),
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.output_len,
        "temperature": 0.0,
    }
    body.update(
        _chat_prompt(request)
        if options.endpoint_type == "openai-chat"
        else _completion_prompt(request, options, history)
    )
    if options.ignore_eos and not request.tools:
        body["ignore_eos"] = True
    if options.return_token_ids:
        body["return_token_ids"] = True
    if request.priority is not None:
        body["priority"] = request.priority
    if options.is_deterministic(request):
        body["deterministic"] = True
    body.update(options.extra_body)
    return orjson.dumps({name: value for name, value in body.items() if value is not None})


def _completion_prompt(request: TraceRequest, options: BodyOptions, history: Sequence[int]) -> dict[str, Any]:
    if request.tools:
        raise ValueError("tool calls need the chat endpoint (--endpoint-type openai-chat)")
    if request.prompt_text is not None:
        return {"prompt": request.prompt_text}
    return {"prompt": [*history, *prompt_token_ids(request, options)]}


def _chat_prompt(request: TraceRequest) -> dict[str, Any]:
    if request.conversation_id is not None:
        raise ValueError("conversations of token ids need the completions endpoint (--endpoint-type openai)")
    messages = [{"role": "user", "content": request.prompt_text or _random_text(request)}]
    if not request.tools:
        return {"messages": messages}
    return {"messages": messages, "tools": [_WEATHER_TOOL], "tool_choice": "required"}


def _random_text(request: TraceRequest) -> str:
    rng = random_stream(request.prompt_seed, "prompt words", request.request_id)
    drawn = rng.integers(0, len(_WORDS), request.prompt_len)
    return " ".join(_WORDS[i] for i in drawn)


def _random_ids(seed: int, purpose: str, number: int, count: int, options: BodyOptions) -> list[int]:
    if count == 0:
        return []
    drawn = random_stream(seed, purpose, number).integers(options.min_token_id, options.vocab_size, count)
    return [int(token) for token in drawn.tolist()]
