from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.config import ApiConfig
from tests.api.messages_wire import COUNT_TOKENS, MESSAGES, ask, error_of, whole
from tests.api.running_server import END_ID, MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT
from tests.text import tiny_tokenizers

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 3}}, "required": ["city"]}
WEATHER = {"name": "weather", "description": "of a city", "input_schema": SCHEMA}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
QUESTION = [{"role": "user", "content": "hello"}]
ALWAYS_THINKS = tiny_tokenizers.CHAT_TEMPLATE + "{{ '<think>' }}"
TAKES_EFFORT = tiny_tokenizers.CHAT_TEMPLATE + "{{ reasoning_effort }}"


@pytest.fixture(scope="module")
def able() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        yield server


@pytest.fixture
def prompts(able: RunningServer) -> list[list[int]]:
    """Those that the model is given."""
    seen: list[list[int]] = []

    def note(prompt: Any, so_far: Any, seed: int) -> int:
        seen.append(list(prompt))
        return END_ID

    able.play(note)
    return seen


def post(server: RunningServer, path: str = MESSAGES, **fields: Any) -> httpx.Response:
    return httpx.post(f"{server.base_url}{path}", json={"model": MODEL, **fields})


def begin_and_go_on_anyhow(server: RunningServer, text: str) -> None:
    """The grammar has the say from then on."""
    ids = server.tokenizer.encode(text, add_special_tokens=False)
    anyhow = server.tokenizer.num_tokens
    server.play(lambda prompt, so_far, seed: [*ids, hash((seed, *so_far)) % anyhow][min(len(so_far), len(ids))])


def prompt_of(server: RunningServer, prompts: list[list[int]], path: str, **fields: Any) -> list[int]:
    assert post(server, path, max_tokens=5, **fields).status_code == 200
    return prompts[-1]


def test_the_prompt_is_that_of_the_chat(able: RunningServer, prompts: list[list[int]]) -> None:
    said = [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "so", "signature": "s"},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rom"}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "20"}]},
    ]
    call = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Rom"}'}}
    chat = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "reasoning_content": "so", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t1", "content": "20"},
    ]
    function = {"name": "weather", "description": "of a city", "parameters": SCHEMA}
    tools = [{"type": "function", "function": function}]
    ours = prompt_of(able, prompts, MESSAGES, system="Be brief.", messages=said, tools=[WEATHER])
    assert ours == prompt_of(able, prompts, CHAT, messages=chat, tools=tools)
    assert able.tokenizer.decode(ours).count("weather") == 2


def test_a_message_that_the_assistant_has_begun_is_continued(able: RunningServer, prompts: list[list[int]]) -> None:
    begun = [*QUESTION, {"role": "assistant", "content": "It is"}]
    ours = prompt_of(able, prompts, MESSAGES, messages=begun)
    assert able.tokenizer.decode(ours).endswith("It is")
    options = {"continue_final_message": True, "add_generation_prompt": False}
    assert ours == prompt_of(able, prompts, CHAT, messages=begun, **options)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": [{"type": "text", "text": "Be brief."}]},
        {"tools": [WEATHER, NOW], "tool_choice": {"type": "any"}},
        {"tools": [WEATHER], "tool_choice": {"type": "none"}},
        {"thinking": {"type": "disabled"}},
        {"messages": [*QUESTION, {"role": "assistant", "content": "It is"}]},
    ],
)
def test_what_is_counted_is_the_prompt_of_the_call(able: RunningServer, fields: dict[str, Any]) -> None:
    able.reset()
    body = {"messages": QUESTION, **fields}
    counted = post(able, COUNT_TOKENS, **body).json()
    assert counted == {"input_tokens": post(able, max_tokens=3, **body).json()["usage"]["input_tokens"]}


def test_sampling_fields_and_stop_sequences_reach_the_engine(able: RunningServer) -> None:
    able.say("one two three")
    answer = whole(able, temperature=0.5, top_p=0.75, top_k=7, stop_sequences=["wo th"], metadata={"user_id": "u"})
    sampling = able.executor.last_sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.75, 7)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "wo th")
    assert answer["content"] == [{"type": "text", "text": "one t"}]


def test_who_asks_for_determinism_has_it(able: RunningServer) -> None:
    able.say("so")
    for asks in (True, False, None):
        assert post(able, **ask(deterministic=asks, seed=7)).status_code == 200
        assert able.executor.last_sampling.deterministic is bool(asks)
        assert able.executor.last_sampling.seed == 7


def test_the_context_may_leave_less_than_max_tokens(able: RunningServer) -> None:
    """The field is required, so clients send one that fits the largest model; it is the most that they want."""
    able.play(lambda prompt, so_far, seed: 75)
    asked = whole(able, max_tokens=10)
    assert (asked["stop_reason"], asked["usage"]["output_tokens"]) == ("max_tokens", 10)
    cut = whole(able, max_tokens=32_000)
    usage = cut["usage"]
    assert cut["stop_reason"] == "model_context_window_exceeded"
    assert usage["input_tokens"] + usage["output_tokens"] == able.scene.max_model_len


def test_max_tokens_0_computes_the_prompt_and_says_nothing(able: RunningServer) -> None:
    answer = whole(able, max_tokens=0)
    assert (answer["content"], answer["stop_reason"], answer["usage"]["output_tokens"]) == ([], "max_tokens", 0)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "any"}, {"weather", "now"}),
        ({"type": "tool", "name": "now"}, {"now"}),
        ({"type": "any", "disable_parallel_tool_use": True}, {"weather", "now"}),
    ],
)
def test_a_call_that_must_be_made_is_made(able: RunningServer, choice: dict[str, Any], names: set[str]) -> None:
    begin_and_go_on_anyhow(able, "<tool_call>")
    answer = whole(able, tools=[WEATHER, NOW], tool_choice=choice, max_tokens=400)
    assert answer["stop_reason"] == "tool_use"
    assert {block["type"] for block in answer["content"]} == {"tool_use"}
    assert {block["name"] for block in answer["content"]} <= names
    assert all(block["id"].startswith("toolu_") for block in answer["content"])
    if choice.get("disable_parallel_tool_use"):
        assert len(answer["content"]) == 1


def test_with_tool_choice_none_nothing_is_called(able: RunningServer) -> None:
    able.say('<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    answer = whole(able, tools=[NOW], tool_choice={"type": "none"})
    assert [block["type"] for block in answer["content"]] == ["text"]


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_the_output_may_be_held_to_a_schema(able: RunningServer, place: str) -> None:
    begin_and_go_on_anyhow(able, "0")
    form = {"type": "json_schema", "schema": {"type": "integer", "minimum": 3, "maximum": 5}}
    fields = {"output_config": {"format": form}} if place == "output_config" else {"output_format": form}
    (block,) = whole(able, **fields)["content"]
    assert int(block["text"]) in (3, 4, 5)


@pytest.mark.parametrize(
    ("template", "fields", "ending", "unheeded"),
    [
        (tiny_tokenizers.TOOL_TEMPLATE, {"thinking": {"type": "disabled"}}, "</think>\n\n", ""),
        (tiny_tokenizers.TOOL_TEMPLATE, {"thinking": {"type": "adaptive"}}, "<think>\n", ""),
        (
            tiny_tokenizers.TOOL_TEMPLATE,
            {"thinking": {"type": "adaptive", "budget_tokens": 2000}},
            "<think>\n",
            "thinking.budget_tokens",
        ),
        (tiny_tokenizers.TOOL_TEMPLATE, {"thinking": {"type": "between_tools"}}, "assistant\n", "thinking"),
        (ALWAYS_THINKS, {"thinking": {"type": "enabled"}}, "<think>", ""),
        (ALWAYS_THINKS, {"thinking": {"type": "disabled"}}, "<think>", "thinking"),
        (tiny_tokenizers.CHAT_TEMPLATE, {"thinking": {"type": "disabled"}}, "assistant\n", ""),
        (tiny_tokenizers.CHAT_TEMPLATE, {"thinking": {"type": "adaptive"}}, "assistant\n", "thinking"),
        (tiny_tokenizers.CHAT_TEMPLATE, {"output_config": {"effort": "low"}}, "assistant\n", "output_config.effort"),
        (TAKES_EFFORT, {"output_config": {"effort": "low"}}, "low", ""),
        (TAKES_EFFORT, {"output_config": {"effort": "max"}}, "xhigh", ""),
        (tiny_tokenizers.TOOL_TEMPLATE, {"chat_template_kwargs": {"thinking": True}}, "<think>\n", ""),
    ],
)
def test_thinking_is_what_the_template_makes_of_it_and_what_nothing_heeds_is_named(
    template: str, fields: dict[str, Any], ending: str, unheeded: str
) -> None:
    prompts: list[list[int]] = []

    def note(prompt: Any, so_far: Any, seed: int) -> int:
        prompts.append(list(prompt))
        return END_ID

    with running(Scene(chat_template=template)) as server:
        server.play(note)
        answer = post(server, max_tokens=5, messages=QUESTION, **fields)
        assert answer.status_code == 200, answer.text
        assert answer.headers.get("x-ignored-params", "") == unheeded
        assert server.tokenizer.decode(prompts[-1], skip_special_tokens=False).endswith(ending)
        assert post(server, COUNT_TOKENS, messages=QUESTION, **fields).headers.get("x-ignored-params", "") == unheeded


UNKNOWN: dict[str, Any] = {
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "system": [{"type": "text", "text": "s", "citations": [], "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "mood": "good"}], "name": "Ann"}],
    "tools": [{**NOW, "cache_control": {"type": "ephemeral"}, "eager_input_streaming": True, "defer_loading": True}],
}


def test_unknown_fields_are_named_and_labels_are_not(able: RunningServer) -> None:
    able.reset()
    names = "context_management,system.citations,tools.defer_loading,messages.name,messages.content.mood"
    answer = post(able, max_tokens=5, **UNKNOWN, cache_control={"type": "ephemeral"}, service_tier="auto")
    assert sorted(answer.headers["x-ignored-params"].split(",")) == sorted(names.split(","))
    counted = post(able, COUNT_TOKENS, **UNKNOWN)
    assert sorted(counted.headers["x-ignored-params"].split(",")) == sorted(names.split(","))


def test_strict_params_refuse_them() -> None:
    with running(Scene(config=replace(Scene().config, strict_params=True))) as server:
        for path, fields in ((MESSAGES, {"max_tokens": 5}), (COUNT_TOKENS, {})):
            refused = post(server, path, messages=QUESTION, context_management={}, **fields)
            assert refused.status_code == 400
            assert "context_management" in error_of(refused)["message"]


LIMITS = Scene().config


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": None}, "max_tokens is required"),
        ({"max_tokens": -1}, "max_tokens must be at least 0"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": []}, "messages must not be empty"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content must be a string or a list"),
        ({"system": 5}, "system must be a string or a list"),
        ({"temperature": 3}, "temperature must be between"),
        ({"top_p": -0.1}, "top_p"),
        ({"stop_sequences": ["x"] * (LIMITS.max_stops + 1)}, "stop_sequences may hold at most"),
        ({"stop_sequences": [""]}, "stop_sequences may not hold an empty string"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools[0].name must be"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema is required"),
        ({"tools": [{"name": "a", "input_schema": {"type": "array"}}]}, "tools[0].input_schema must be"),
        ({"tools": [{"name": "a", "input_schema": {"x": "y" * 70_000}}]}, "tools[0].input_schema"),
        ({"tools": [NOW, NOW]}, "tools: two tools have the same name"),
        ({"tools": [NOW] * (LIMITS.max_tools + 1)}, "tools may hold at most"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [NOW], "tool_choice": {"type": "tool"}}, "tool_choice.name is required"),
        ({"tools": [NOW], "tool_choice": {"type": "tool", "name": "then"}}, "tool_choice"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "auto "}}, "tool_choice.type"),
        ({"thinking": {"type": "always"}}, "thinking.type"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "ship"}}}}, "output_config.format"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not supported"),
        ({"container": "c"}, "container is not supported"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"messages": [{"role": "user", "content": "x y " * 4000}]}, "prompt is too long"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_refusals_name_the_field_that_the_client_wrote(able: RunningServer, fields: dict[str, Any], named: str) -> None:
    body = {name: value for name, value in {**ask(), **fields}.items() if value is not None}
    refused = httpx.post(f"{able.base_url}{MESSAGES}", json=body)
    assert refused.status_code == 400, refused.text
    assert named in error_of(refused)["message"]


def test_nothing_that_asks_for_nothing_is_refused(able: RunningServer) -> None:
    able.reset()
    body = ask(mcp_servers=[], container=None, tools=None, system=None, thinking=None, stop_sequences=None, top_k=None)
    answer = httpx.post(f"{able.base_url}{MESSAGES}", json=body)
    assert (answer.status_code, answer.headers.get("x-ignored-params")) == (200, None)


def test_a_model_whose_template_knows_no_tools_is_told_of_them(server: RunningServer) -> None:
    """How: tests/text/test_taught_tools.py."""
    counts = [
        post(server, COUNT_TOKENS, messages=QUESTION, **fields).json()["input_tokens"]
        for fields in ({}, {"tools": [NOW]})
    ]
    assert counts[1] > counts[0] + 20


def test_a_model_without_a_chat_template_refuses_all() -> None:
    config = ApiConfig(served_model_names=(MODEL,))
    with running(Scene(config=config, chat_template=None)) as server:
        for path, fields in ((MESSAGES, {"max_tokens": 5}), (COUNT_TOKENS, {})):
            assert post(server, path, messages=QUESTION, thinking={"type": "adaptive"}, **fields).status_code == 400
