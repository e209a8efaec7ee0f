"""A response is made into a chat, so what is tested is that nothing gets lost or gets another name on the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.api.calls.response_call import input_items
from service.protocol.responses import ResponsesRequest
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT, chat, error_of
from tests.text import tiny_tokenizers

RESPONSES = "/v1/responses"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "rain", "parameters": CITY}
TOO_LONG = "a" * (256 * 1024 + 1)
"""The arguments of a call."""
HI = {"role": "user", "content": "hi"}


@pytest.fixture(scope="module")
def able() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        yield server


def ask(server: RunningServer, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "input": "hi", **fields}
    return httpx.post(f"{server.base_url}{RESPONSES}", json=body, timeout=30)


def num_prompt_tokens(server: RunningServer, path: str, body: dict[str, Any]) -> int:
    answer = httpx.post(f"{server.base_url}{path}", json=body, timeout=30).json()
    usage = answer["usage"]
    return int(usage["prompt_tokens"] if path == CHAT else usage["input_tokens"])


def test_a_text_is_a_message_of_the_user() -> None:
    (item,) = input_items(ResponsesRequest(model="m", input="hi"))
    assert (item.role, item.content) == ("user", "hi")
    assert input_items(ResponsesRequest(model="m")) == ()


@pytest.mark.parametrize(
    ("response", "as_chat"),
    [
        ({"input": "hi"}, chat("hi")),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]}, chat("hi")),
        (
            {"input": "hi", "instructions": "Be brief."},
            {"model": MODEL, "messages": [{"role": "system", "content": "Be brief."}, HI]},
        ),
        (
            {
                "input": [
                    HI,
                    {"type": "function_call", "call_id": "c", "name": "rain", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "7"},
                ],
                "tools": [FUNCTION],
            },
            {
                "model": MODEL,
                "messages": [
                    HI,
                    {
                        "role": "assistant",
                        "content": "",
                        "tool_calls": [
                            {"id": "c", "type": "function", "function": {"name": "rain", "arguments": "{}"}}
                        ],
                    },
                    {"role": "tool", "tool_call_id": "c", "content": "7"},
                ],
                "tools": [{"type": "function", "function": {"name": "rain", "parameters": CITY}}],
            },
        ),
        ({"input": "hi", "reasoning": {"effort": "none"}}, chat("hi", reasoning_effort="none")),
        (
            {"input": "hi", "chat_template_kwargs": {"thinking": True}},
            chat("hi", chat_template_kwargs={"thinking": True}),
        ),
    ],
)
def test_its_prompt_is_a_chats(able: RunningServer, response: dict[str, Any], as_chat: dict[str, Any]) -> None:
    body = {"model": MODEL, **response}
    assert num_prompt_tokens(able, RESPONSES, body) == num_prompt_tokens(able, CHAT, as_chat)


def test_truncation_drops_what_does_not_fit(able: RunningServer) -> None:
    long = "one two three " * 900
    assert ask(able, input=long).status_code == 400
    answer = ask(able, input=long, truncation="auto", max_output_tokens=5)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["input_tokens"] == able.scene.max_model_len - 5


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": []}, "input", None),
        ({"input": None}, "input", None),
        ({"input": 5}, "input", None),
        ({"model": "nobody"}, "model", "model_not_found"),
        ({"max_output_tokens": 0}, "max_output_tokens", None),
        ({"max_output_tokens": 9000}, "max_output_tokens", "context_length_exceeded"),
        ({"input": "x " * 9000}, "input", "context_length_exceeded"),
        ({"temperature": 3}, "temperature", None),
        ({"reasoning": {"effort": "wild"}}, "reasoning.effort", None),
        ({"text": {"verbosity": "low"}}, "text.verbosity", "unsupported_parameter"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}, "verbosity": "high"}}, "text.verbosity", None),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 3}}}}, "text.format.schema", None),
        ({"tools": [{"type": "web_search"}, {**FUNCTION, "name": "a b"}]}, "tools[1].name", None),
        ({"tools": [{**FUNCTION, "parameters": {"type": "array"}}]}, "tools[0].parameters", None),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tool_choice": {"type": "function", "name": "snow"}, "tools": [FUNCTION]}, "tool_choice", None),
        (
            {"input": [HI, {"type": "function_call", "call_id": "c", "name": "f", "arguments": TOO_LONG}]},
            "input[1].arguments",
            None,
        ),
        ({"input": [HI, {"role": "nobody", "content": "a"}]}, "input[1].role", None),
        ({"include": ["everything"]}, "include", None),
        ({"top_logprobs": 2}, "top_logprobs", None),
        ({"metadata": {str(index): "" for index in range(17)}}, "metadata", None),
        ({"messages": [HI]}, "messages", "unsupported_parameter"),
        ({"max_tokens": 5}, "max_tokens", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ],
)
def test_refusals_name_the_field_as_the_client_knows_it(
    able: RunningServer, fields: dict[str, Any], param: str, code: str | None
) -> None:
    response = ask(able, **fields)
    error = error_of(response)
    assert error["param"] == param, error
    assert param.split("[")[0] in error["message"] or code == "context_length_exceeded"
    assert code is None or error["code"] == code


def test_what_is_not_heeded_is_named_in_a_header(able: RunningServer) -> None:
    able.say("yes")
    fields = {
        "tools": [{"type": "web_search"}],
        "reasoning": {"summary": "auto"},
        "input": [{**HI, "mood": 1}],
        "store": True,
        "client_metadata": {"a": "b"},
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "stream_options": {"include_obfuscation": False},
    }
    ignored = ask(able, **fields).headers["x-ignored-params"].split(",")
    assert sorted(ignored) == ["input.mood", "reasoning.summary", "store", "tools.web_search"]
    assert "x-ignored-params" not in ask(able, store=False, metadata={"a": "b"}, user="u").headers


def test_strict_servers_refuse_it_instead() -> None:
    with running(Scene(config=replace(Scene().config, strict_params=True))) as server:
        assert error_of(ask(server, tools=[{"type": "web_search"}]))["param"] == "tools.web_search"


def test_the_form_of_the_text_holds(able: RunningServer) -> None:
    able.play(lambda prompt, so_far, seed: 75)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for format_ in ({"type": "json_schema", "name": "x", "schema": schema, "strict": True}, {"type": "json_object"}):
        answer = ask(able, text={"format": format_}, max_output_tokens=9).json()
        assert answer["output"][0]["content"][0]["text"].lstrip().startswith("{")
        assert answer["text"]["format"] == format_


def test_fields_of_a_chat_that_mean_the_same_here(able: RunningServer) -> None:
    able.say("<think>So.</think>abc")
    assert [item["type"] for item in ask(able).json()["output"]] == ["reasoning", "message"]
    hidden = ask(able, include_reasoning=False, max_output_tokens=20.0)
    assert [item["type"] for item in hidden.json()["output"]] == ["message"]
    assert "x-ignored-params" not in hidden.headers
    able.say("abc")
    held = ask(able, regex="[a-c]{2}", chat_template_kwargs={"enable_thinking": False}, model=None)
    assert held.json()["output"][0]["content"][0]["text"] == "ab"


@pytest.mark.parametrize(
    ("name", "value"), [("temperature", 0.5), ("top_p", 0.9), ("top_k", 3), ("seed", 11), ("repetition_penalty", 1.5)]
)
def test_sampling_fields_reach_the_engine(able: RunningServer, name: str, value: float) -> None:
    able.say("yes")
    answer = ask(able, **{name: value}).json()
    sampling = able.executor.last_sampling
    assert sampling is not None
    assert getattr(sampling, name) == value
    assert answer.get(name, value) == value, "it tells what was asked for, where it tells of it"
