"""/v1/responses through openai-python, strictly validated, and in the shapes that agents send."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.e2e.strict_client import strict_client
from tests.text import tiny_tokenizers

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
RAIN: Any = {"type": "function", "name": "rain", "description": "Rain.", "parameters": CITY, "strict": True}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch" /(.|\\n)*/'},
}
CALLS = (
    '<think>Both.</think>Let me see.<tool_call>\n{"name": "rain", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin Patch\\n+\\"ä\\""}}\n</tool_call>'
)
PATCHED = '*** Begin Patch\n+"ä"'


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE, max_model_len=8192)) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[OpenAI]:
    server.say(CALLS)
    with strict_client(server.base_url) as client:
        yield client


def ask(client: OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{"model": MODEL, "input": "Oslo?", "tools": [RAIN, PATCH], **fields})


def test_every_item_is_of_openais_types(client: OpenAI) -> None:
    response = ask(client, instructions="Be brief.", metadata={"a": "b"})
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "custom_tool_call"]
    reasoning, _, call, custom = response.output
    assert reasoning.content[0].text == "Both."
    assert response.output_text == "Let me see."
    assert json.loads(call.arguments) == {"city": "Oslo"}
    assert (custom.name, custom.input) == ("apply_patch", PATCHED)
    assert (response.instructions, response.metadata, response.status) == ("Be brief.", {"a": "b"}, "completed")
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_what_the_client_puts_together_of_a_stream_is_the_response(client: OpenAI) -> None:
    """openai-python's own accumulation asserts at each event that what it belongs to is there."""
    with client.responses.stream(model=MODEL, input="Oslo?", tools=[RAIN, PATCH]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "custom_tool_call"]
    for kind in (
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.output_text.delta",
        "response.output_text.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.content_part.added",
        "response.content_part.done",
    ):
        assert kind in kinds
    parsed = final.output[2]
    assert parsed.type == "function_call"
    assert parsed.parsed_arguments == {"city": "Oslo"}


def test_its_output_goes_back_as_input(server: RunningServer, client: OpenAI) -> None:
    response = ask(client)
    said = [item.model_dump() for item in response.output]
    results: list[Any] = [
        {"type": "function_call_output", "call_id": response.output[2].call_id, "output": "7 mm"},
        {
            "type": "custom_tool_call_output",
            "call_id": response.output[3].call_id,
            "output": [{"type": "input_text", "text": "Done."}],
        },
    ]
    server.say("It rains.")
    for items in (said, response.output):  # as JSON, and as the client's own objects
        history = [{"role": "user", "content": "Oslo?"}, *items, *results]
        raw = client.responses.with_raw_response.create(model=MODEL, input=history, tools=[RAIN, PATCH])
        assert raw.parse().output_text == "It rains."
        assert raw.headers["x-ignored-params"] == "tools.format"


class Place(BaseModel):
    city: str


@pytest.mark.parametrize("max_output_tokens", [58, 64, 142])
def test_a_call_that_was_cut_can_be_said_back(client: OpenAI, max_output_tokens: int) -> None:
    response = ask(client, max_output_tokens=max_output_tokens)
    assert response.status == "incomplete"
    kinds = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    calls = [item for item in response.output if item.type in kinds]
    assert calls
    results = [{"type": kinds[call.type], "call_id": call.call_id, "output": "It is cut."} for call in calls]
    asked = {"type": "message", "role": "user", "content": "Oslo?"}
    assert ask(client, input=[asked, *(item.model_dump() for item in response.output), *results]).output_text


def test_structured_output_is_parsed(server: RunningServer, client: OpenAI) -> None:
    server.say('{"city": "Oslo"}')
    response = client.responses.parse(model=MODEL, input="Where?", text_format=Place)
    assert response.output_parsed == Place(city="Oslo")


def test_a_tool_that_must_be_called(server: RunningServer, client: OpenAI) -> None:
    server.say("<think>.</think>" + "a" * 200)
    regex = {"type": "grammar", "syntax": "regex", "definition": "[ab]{3}"}
    answer = {"type": "custom", "name": "answer", "format": regex}
    choice = {"type": "custom", "name": "answer"}
    response = ask(client, tools=[RAIN, answer], tool_choice=choice, max_output_tokens=200, parallel_tool_calls=False)
    (call,) = [item for item in response.output if item.type == "custom_tool_call"]
    assert set(call.input) <= {"a", "b"}
    assert len(call.input) == 3
    assert response.tool_choice.name == "answer"
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "rain"}]}
    forced = ask(client, tools=[RAIN, answer], tool_choice=allowed, max_output_tokens=60)
    assert forced.output[-1].type == "function_call"


def test_errors_are_openais(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, tools=[{"type": "file_search", "vector_store_ids": ["vs"]}])
    assert (refused.value.param, refused.value.code) == ("tools[0].type", "unsupported_parameter")
    with pytest.raises(openai.NotFoundError):
        ask(client, model="nobody")


CODEX: dict[str, Any] = {
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Sandbox: read-only."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": None},
        {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": '{"output": "a.py", "metadata": {}}'},
        {
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "call_2",
            "name": "apply_patch",
            "input": PATCHED,
        },
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Success."},
    ],
    "tools": [
        {
            "type": "function",
            "name": "shell",
            "description": "Runs a command.",
            "strict": False,
            "parameters": {
                "type": "object",
                "properties": {"command": {"type": "array", "items": {"type": "string"}}},
                "required": ["command"],
                "additionalProperties": False,
            },
        },
        PATCH,
        {"type": "web_search", "external_web_access": False},
        {"type": "namespace", "name": "mcp", "description": "MCP.", "tools": [{**RAIN, "strict": False}]},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
}


def test_codex(server: RunningServer, client: OpenAI) -> None:
    """The items that it looks at are those of `output_item.done`; it wants `response.completed` with its usage."""
    server.say('Hm.</think>I patch it.<tool_call>{"name": "mcp__rain", "arguments": {"city": "Oslo"}}</tool_call>')
    raw = client.responses.with_raw_response.create(model=MODEL, **CODEX)
    assert raw.headers["x-ignored-params"].split(",") == ["reasoning.summary", "tools.format", "tools.web_search"]
    events = list(raw.parse())
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [(item.type, getattr(item, "namespace", None)) for item in done] == [
        ("reasoning", None),
        ("message", None),
        ("function_call", "mcp"),
    ]
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    assert events[-1].response.usage.output_tokens > 0


def test_the_agents_sdk(server: RunningServer, client: OpenAI) -> None:
    """Its second turn: what it got before, without the fields that were null, and the results."""
    first = ask(client, instructions="You help.", include=[], tools=[RAIN], parallel_tool_calls=False)
    calls = [item for item in first.output if item.type == "function_call"]
    history = [
        {"role": "user", "content": "Oslo?"},
        *[item.model_dump(exclude_unset=True) for item in first.output],
        *[{"type": "function_call_output", "call_id": call.call_id, "output": "7"} for call in calls],
    ]
    server.say("It rains.")
    events = list(ask(client, instructions="You help.", include=[], tools=[RAIN], input=history, stream=True))
    assert events[-1].response.output_text == "It rains."


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"instructions": "Be brief.", "tools": [RAIN, PATCH]},
        {"input": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "tools": [RAIN]},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": CITY}}, "tool_choice": "none"},
    ],
    ids=["text", "tools", "messages", "form"],
)
def test_the_tokens_that_are_counted_are_those_of_the_prompt(client: OpenAI, fields: Any) -> None:
    asked = {"model": MODEL, "input": "Oslo?", **fields}
    counted = client.responses.input_tokens.count(**asked)
    assert counted.object == "response.input_tokens"
    usage = client.responses.create(**asked, max_output_tokens=1).usage
    assert usage is not None and counted.input_tokens == usage.input_tokens


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": "a", "conversation": "conv_1"}, "conversation"),
        ({"input": "a", "model": "b"}, "model"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(client: OpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.APIStatusError) as refusal:
        client.responses.input_tokens.count(**fields)
    assert (refusal.value.param, refusal.value.status_code) == (param, 404 if param == "model" else 400)
