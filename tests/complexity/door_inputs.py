"""Worst inputs of the door: bodies and headers, and all that is checked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import orjson
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.answers.answering import ignored_header
from service.api.calls.fine_tuning_call import checked_job
from service.api.calls.json_body import read_json_object
from service.api.calls.large_json import parse_large
from service.api.calls.legacy_functions import legacy_names, with_tools
from service.api.calls.member_limits import check_members
from service.api.calls.sampling import check_sampling, sampling_maker
from service.api.calls.token_checks import check_token_ids
from service.api.calls.tools import check_tools
from service.api.calls.unknown_fields import unknown_fields
from service.api.calls.validation import check_call
from service.api.calls.wire_parsing import parse
from service.api.error_responses import error_response
from service.api.middleware.allowed_hosts import AllowedHosts
from service.api.middleware.bearer_auth import BearerAuth
from service.api.middleware.body_budget import BodyBudget
from service.api.middleware.request_ids import RequestIds
from service.api.serving_state import GenerationDefaults, ServedModel
from service.api.text_pool import TextPool
from service.config import ApiConfig
from service.core.host_times import HostTimes
from service.errors import InvalidRequest
from service.finetune.served_base import ServedBase
from service.protocol.chat import ChatRequest
from service.protocol.completions import CompletionRequest
from service.protocol.tokenize import DetokenizeRequest
from service.text.chat_messages import check_messages, num_characters, template_messages
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import Tokenizer
from tests.complexity.growth import Work, WorstInput
from tests.text import tiny_tokenizers

CONFIG = ApiConfig(served_model_names=("m",))
_TEMPLATE = ChatTemplate(tiny_tokenizers.TOOL_TEMPLATE, {})
_BODY = CONFIG.max_body_bytes
_SAID = {"role": "user", "content": "x"}
_PART = {"type": "text", "text": "x"}


def _nothing(*_: object) -> None:
    """A sink."""


_BASE = ServedBase(("m",), "weights", 64, frozenset({"q_proj"}), 64, 2048, 512)


def _job(fields: dict[str, Any]) -> Work:
    body = {"model": "m", "training_file": "file-1", **fields}
    return lambda: _refused_or(InvalidRequest, lambda: ignored_header(checked_job(body, _BASE)[1]))


def _large(body: bytes) -> Work:
    return lambda: _refused_or(orjson.JSONDecodeError, lambda: parse_large(body))


def _refused_or(error: type[Exception], work: Work) -> None:
    try:
        work()
    except error:
        return


def _read_in_pieces(n: int) -> Work:
    """A body that comes a byte at a time."""
    body = b'{"a":"' + b"x" * n + b'"}'
    share = BodyBudget(_BODY).share()
    scope = {"type": "http", "headers": [(b"content-type", b"application/json")], "state": {"body_share": share}}

    def work() -> None:
        pieces = iter(body)
        left = len(body)

        async def receive() -> Message:
            nonlocal left
            left -= 1
            return {"type": "http.request", "body": bytes((next(pieces),)), "more_body": left > 0}

        async def read() -> None:
            texts = TextPool(1, HostTimes())
            await read_json_object(HttpRequest(scope, receive), texts, CONFIG)
            texts.close()

        asyncio.run(read())

    return work


def _chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [_SAID], **fields}


def _door(shape: type[Any], body: dict[str, Any]) -> Work:
    """A body becomes its wire shape, or is refused."""

    def work() -> None:
        check_members(body, CONFIG)
        parse(shape, body)

    return work


def _chat_door(n: int, **message: Any) -> Work:
    return _door(ChatRequest, {"model": "m", "messages": [{**_SAID, **message}] * n})


def _completion_door(**fields: Any) -> Work:
    return _door(CompletionRequest, {"model": "m", "prompt": "x", **fields})


def _called(fields_of: Callable[[int], dict[str, Any]], n: int) -> Work:
    """All checks of a call's common fields."""
    fields = parse(CompletionRequest, {"model": "m", "prompt": "x", **fields_of(n)})
    return lambda: check_call(fields, CONFIG, GenerationDefaults(), logprobs=fields.logprobs)


def _legacy_chat(n: int) -> Work:
    """Calls of functions and their results, in turn."""
    call = {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}
    turns = [call, {"role": "function", "name": "f", "content": "x"}] * (n // 2)
    fields = parse(ChatRequest, _chat_body(messages=turns, functions=[{"name": "f"}] * min(n, CONFIG.max_tools)))

    def work() -> None:
        chat, name_of = with_tools(fields), legacy_names(fields)
        unknown_fields(fields)
        for index in range(len(chat.messages)):
            name_of(f"messages[{index}].tool_calls[0].function.arguments")

    return work


def _messages(n: int) -> Work:
    fields = parse(ChatRequest, _chat_body(messages=[{**_SAID, f"x{index % 50}": 1} for index in range(n)]))

    def work() -> None:
        unknown_fields(fields)
        check_messages(fields.messages, _TEMPLATE)
        num_characters(fields.messages)
        template_messages(fields.messages, _TEMPLATE, CONFIG.max_arguments_characters)

    return work


def _arguments(text: str) -> Work:
    call = {"function": {"name": "f", "arguments": text}}
    fields = parse(ChatRequest, _chat_body(messages=[{"role": "assistant", "tool_calls": [call]}]))
    return lambda: template_messages(fields.messages, _TEMPLATE, CONFIG.max_arguments_characters)


def _tools(n: int) -> Work:
    tools = [{"type": "function", "function": {"name": f"f{i}", "parameters": {"x": [1]}}} for i in range(n)]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}
    fields = parse(ChatRequest, _chat_body(tools=tools, tool_choice=choice))
    return lambda: check_tools(fields, _TEMPLATE, CONFIG)


def _drawn(fields_of: Callable[[int], dict[str, Any]], n: int) -> Work:
    fields = parse(CompletionRequest, {"model": "m", "prompt": "x", **fields_of(n)})
    model = cast(ServedModel, _Model)

    def work() -> None:
        sampling_maker(check_sampling(fields, CONFIG, GenerationDefaults()), model, frozenset(), None)

    return work


class _Model:
    vocab_size = 1_000_000
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())


def _wrong_id(n: int) -> Work:
    ids = [7] * n + [-1]
    return lambda: check_token_ids(ids, 100, "prompt")


def _through(middleware: Callable[[ASGIApp], ASGIApp], headers: list[tuple[bytes, bytes]]) -> Work:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Answers nothing."""

    scope = {"type": "http", "path": "/v1/models", "headers": headers}
    stack = middleware(app)
    return lambda: asyncio.run(cast(Any, stack(scope, cast(Any, _nothing), cast(Any, _nothing))))


def _error_of_long_names(n: int) -> Work:
    error = InvalidRequest("x" * n, param="y" * n)
    scope = {"type": "http", "path": "/v1/messages", "state": {"request_id": "r"}}
    return lambda: error_response(error, scope)


DOOR_INPUTS = [
    WorstInput(
        "JSON: a string of quotes that does not end",
        ("api/calls/large_json.py",),
        lambda n: _large(b'{"prompt":"' + b'\\"' * n),
        50_000,
        _BODY // 2,
        "pool",
    ),
    WorstInput("JSON: brackets", ("api/calls/large_json.py",), lambda n: _large(b"[" * n), 50_000, _BODY, "pool"),
    WorstInput(
        "JSON: lists that are nearly runs",
        ("api/calls/large_json.py",),
        lambda n: _large(b"[" + (b"[" + b"7," * 2000 + b"x],") * (n // 4000) + b"0]"),
        400_000,
        _BODY,
        "pool",
    ),
    WorstInput(
        "JSON: a run of integers",
        ("api/calls/large_json.py",),
        lambda n: _large(b"[" + b"7," * (n // 2) + b"7]"),
        200_000,
        _BODY,
        "pool",
    ),
    WorstInput(
        "JSON: many strings",
        ("api/calls/large_json.py",),
        lambda n: _large(b"[" + b'"",' * (n // 3) + b'""]'),
        60_000,
        _BODY,
        "pool",
    ),
    WorstInput(
        "JSON: a byte at a time",
        ("api/calls/json_body.py", "api/text_pool.py", "api/scope.py"),
        _read_in_pieces,
        2_000,
        _BODY,
        "stream",
    ),
    WorstInput(
        "messages: many",
        ("api/calls/wire_parsing.py", "api/calls/member_limits.py", "protocol/chat.py"),
        _chat_door,
        1_000,
        CONFIG.max_messages,
        "loop",
    ),
    WorstInput(
        "messages: four million that are none",
        ("api/calls/member_limits.py",),
        lambda n: _door(ChatRequest, {"model": "m", "messages": [0] * n}),
        CONFIG.max_messages // 4,
        _BODY // 2,
        "loop",
    ),
    WorstInput(
        "messages: the last is wrong",
        ("api/calls/wire_parsing.py",),
        lambda n: _door(ChatRequest, {"model": "m", "messages": [_SAID] * n + [{"role": 5}]}),
        1_000,
        CONFIG.max_messages,
        "loop",
    ),
    WorstInput(
        "messages: all wrong in every field",
        ("api/calls/wire_parsing.py",),
        lambda n: _door(ChatRequest, {"model": "m", "messages": [{"role": 5, "content": [5], "name": 5}] * n}),
        2_000,
        CONFIG.max_messages,
        "loop",
    ),
    WorstInput(
        "messages: content parts",
        ("api/calls/wire_parsing.py",),
        lambda n: _chat_door(1, content=[_PART] * n),
        2_000,
        CONFIG.max_messages,
        "loop",
    ),
    WorstInput(
        "messages: the last content part is wrong",
        ("api/calls/wire_parsing.py",),
        lambda n: _chat_door(1, content=[_PART] * n + [5]),
        2_000,
        CONFIG.max_messages,
        "loop",
    ),
    WorstInput(
        "messages: checked, with fields that nobody knows",
        ("text/chat_messages.py", "api/calls/unknown_fields.py", "api/calls/unsupported.py"),
        _messages,
        1_000,
        CONFIG.max_messages,
        "loop",
    ),
    WorstInput(
        "messages: calls of functions and their results",
        ("api/calls/legacy_functions.py", "api/calls/unknown_fields.py"),
        _legacy_chat,
        1_000,
        CONFIG.max_messages,
        "loop",
    ),
    WorstInput(
        "arguments of a call: many values",
        ("text/chat_messages.py",),
        lambda n: _arguments('{"a":[' + "[]," * (n // 3 - 3) + "0]}"),
        50_000,
        CONFIG.max_arguments_characters,
        "pool",
    ),
    WorstInput(
        "arguments of a call: deep",
        ("text/chat_messages.py",),
        lambda n: _arguments('{"a":' * (n // 5)),
        50_000,
        CONFIG.max_arguments_characters,
        "pool",
    ),
    WorstInput(
        "arguments of a call: a long number",
        ("text/chat_messages.py",),
        lambda n: _arguments('{"a":1.' + "1" * (n - 8) + "}"),
        120_000,
        CONFIG.max_arguments_characters,
        "pool",
    ),
    WorstInput(
        "tools: many, all allowed",
        ("api/calls/tools.py", "api/calls/schema_limits.py"),
        _tools,
        32,
        CONFIG.max_tools,
        "loop",
    ),
    WorstInput(
        "fields that nobody knows",
        ("api/calls/validation.py", "api/calls/unsupported.py"),
        partial(_called, lambda n: {f"x{index}": 0 for index in range(n)}),
        4_000,
        100_000,
        "loop",
    ),
    WorstInput(
        "fields that nobody knows, told in a header",
        ("api/answers/answering.py",),
        lambda n: partial(ignored_header, ["\n" * n] * n),
        1_000,
        100_000,
        "loop",
    ),
    WorstInput(
        "stop strings: many",
        ("api/calls/wire_parsing.py", "protocol/generation.py"),
        lambda n: _completion_door(stop=["x"] * n),
        40_000,
        500_000,
        "loop",
    ),
    WorstInput(
        "stop_token_ids: more than may be",
        ("api/calls/member_limits.py",),
        lambda n: _completion_door(stop_token_ids=[7] * n),
        CONFIG.max_stop_token_ids // 4,
        _BODY // 2,
        "loop",
    ),
    WorstInput(
        "prompt: ids, the last is none",
        ("api/calls/wire_parsing.py", "protocol/completions.py"),
        lambda n: _completion_door(prompt=[7] * n + ["x"]),
        50_000,
        _BODY // 2,
        "loop",
    ),
    WorstInput(
        "prompt: a list of ids, the last is none, among others",
        ("api/calls/wire_parsing.py",),
        lambda n: _completion_door(prompt=[[7] * n + ["x"]] * CONFIG.max_prompts_per_call),
        5_000,
        _BODY // 2 // CONFIG.max_prompts_per_call,
        "loop",
    ),
    WorstInput(
        "prompt: more strings than may be",
        ("api/calls/member_limits.py",),
        lambda n: _completion_door(prompt=["x"] * n),
        CONFIG.max_prompts_per_call // 4,
        500_000,
        "loop",
    ),
    WorstInput("prompt: the last id is wrong", ("api/calls/token_checks.py",), _wrong_id, 200_000, _BODY // 2, "pool"),
    WorstInput(
        "tokens to detokenize: the last is none",
        ("protocol/tokenize.py",),
        lambda n: _door(DetokenizeRequest, {"tokens": [7] * n + ["x"]}),
        100_000,
        _BODY // 2,
        "loop",
    ),
    WorstInput(
        "logit_bias: more than may be, all wrong",
        ("api/calls/member_limits.py",),
        lambda n: _completion_door(logit_bias={str(index): "x" for index in range(n)}),
        CONFIG.max_logit_bias // 4,
        170_000,
        "loop",
    ),
    WorstInput(
        "logit_bias: as many as may be",
        ("api/calls/sampling.py",),
        partial(_drawn, lambda n: {"logit_bias": {str(index): 1 for index in range(n)}}),
        1_000,
        CONFIG.max_logit_bias,
        "loop",
    ),
    WorstInput(
        "logit_bias: a long key",
        ("api/calls/sampling.py",),
        partial(_drawn, lambda n: {"logit_bias": {"1" * n: 1}}),
        500_000,
        _BODY,
        "loop",
    ),
    WorstInput(
        "bad_words",
        ("api/calls/sampling.py",),
        partial(_drawn, lambda n: {"bad_words": ["x" * CONFIG.max_stop_bytes] * n}),
        16,
        CONFIG.max_bad_words,
        "pool",
    ),
    WorstInput(
        "allowed_token_ids",
        ("api/calls/sampling.py", "api/calls/beam_rules.py"),
        partial(_drawn, lambda n: {"allowed_token_ids": list(range(n, 0, -1))}),
        16_000,
        CONFIG.max_allowed_token_ids,
        "loop",
    ),
    WorstInput(
        "a fine-tuning job with a long name of a linear layer",
        ("api/calls/fine_tuning_call.py", "protocol/fine_tuning.py"),
        lambda n: _job({"hyperparameters": {"target_modules": ["a" * n] * 64}}),
        100_000,
        _BODY // 64,
        "loop",
    ),
    WorstInput(
        "a fine-tuning job with unknown fields",
        ("api/calls/fine_tuning_call.py", "protocol/fine_tuning.py"),
        lambda n: _job({f"field_{i}": i for i in range(n)}),
        20_000,
        _BODY // 12,
        "loop",
    ),
    WorstInput(
        "header: a long key",
        ("api/middleware/bearer_auth.py", "api/scope.py"),
        lambda n: _through(partial(BearerAuth, keys=["k"]), [(b"authorization", b"Bearer " + b" " * n + b"x" * n)]),
        60_000,
        65_536,
        "loop",
    ),
    WorstInput(
        "header: a long host",
        ("api/middleware/allowed_hosts.py",),
        lambda n: _through(partial(AllowedHosts, names=["a.example"]), [(b"host", b"a." * n + b":1")]),
        60_000,
        65_536,
        "loop",
    ),
    WorstInput(
        "header: a long request id behind many others",
        ("api/middleware/request_ids.py", "api/scope.py", "api/random_ids.py"),
        lambda n: _through(RequestIds, [*[(b"x", b"y")] * n, (b"x-request-id", b"a" * n + b"\n")]),
        40_000,
        65_536,
        "loop",
    ),
    WorstInput(
        "a refusal of long names",
        ("api/error_responses.py", "api/messages_errors.py"),
        _error_of_long_names,
        200_000,
        _BODY,
        "loop",
    ),
]
