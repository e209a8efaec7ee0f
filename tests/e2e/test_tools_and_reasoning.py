"""Tool calling and reasoning as openai-python sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel, Field

from service.structured.vocabulary import TokenTable, token_table
from tests.api import running_server
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.e2e.strict_client import strict_client
from tests.text import tiny_tokenizers

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How warm is it in Oslo?"}]
TOOLS: list[ChatCompletionToolParam] = [
    {
        "type": "function",
        "function": {
            "name": "temperature",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALL = '<think>I must ask.</think><tool_call>\n{"name": "temperature", "arguments": {"city": "Oslo"}}\n</tool_call>'


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        yield server


@pytest.fixture
def client(server: RunningServer) -> Iterator[OpenAI]:
    with strict_client(server.base_url) as client:
        yield client


def test_a_round_trip(server: RunningServer, client: OpenAI) -> None:
    server.say(CALL)
    first = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS)
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.tool_calls is not None
    (call,) = message.tool_calls
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    assert message.model_extra is not None
    assert message.model_extra["reasoning_content"] == "I must ask."
    assert first.usage is not None
    assert first.usage.completion_tokens_details is not None
    assert (first.usage.completion_tokens_details.reasoning_tokens or 0) > 0

    server.say("It is 7 degrees.")
    reply: Any = message.model_dump(exclude_none=True)
    result: ChatCompletionMessageParam = {"role": "tool", "tool_call_id": call.id, "content": "7"}
    second = client.chat.completions.create(model=MODEL, messages=[*QUESTION, reply, result], tools=TOOLS)
    assert second.choices[0].message.content == "It is 7 degrees."


def test_functions_as_they_were_before_tools(server: RunningServer, client: OpenAI) -> None:
    server.say(CALL)
    functions: Any = [tool["function"] for tool in TOOLS]
    fields: Any = {"model": MODEL, "functions": functions, "function_call": "auto"}
    first = client.chat.completions.create(messages=QUESTION, **fields).choices[0]
    assert first.finish_reason == "function_call"
    assert first.message.function_call is not None
    assert json.loads(first.message.function_call.arguments) == {"city": "Oslo"}

    deltas = [
        chunk.choices[0].delta for chunk in client.chat.completions.create(messages=QUESTION, stream=True, **fields)
    ]
    told = [delta.function_call for delta in deltas if delta.function_call is not None]
    assert told[0].name == "temperature"
    assert "".join(each.arguments or "" for each in told) == first.message.function_call.arguments

    server.say("It is 7 degrees.")
    reply: Any = first.message.model_dump()
    result: Any = {"role": "function", "name": "temperature", "content": "7"}
    second = client.chat.completions.create(messages=[*QUESTION, reply, result], **fields)
    assert second.choices[0].message.content == "It is 7 degrees."


def test_the_stream_helper_puts_calls_together(server: RunningServer, client: OpenAI) -> None:
    server.say(CALL)
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, tools=TOOLS) as stream:
        events = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in events
    assert "tool_calls.function.arguments.done" in events
    assert final.choices[0].message.tool_calls is not None
    assert final.choices[0].message.tool_calls[0].function.arguments == '{"city": "Oslo"}'
    assert final.choices[0].finish_reason == "tool_calls"


class Temperature(BaseModel):
    """How warm it is."""

    city: str = Field(max_length=12)
    unit: Literal["C", "F"]


def wander(server: RunningServer) -> None:
    """A model that draws at random what its grammar allows."""
    end = 2
    server.play(lambda prompt, so_far, seed: end if len(so_far) > 200 else hash((seed, *so_far[-4:])) % 420)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "Temperature"}}], ids=["required", "named"]
)
@pytest.mark.parametrize("parallel", [True, False])
def test_a_call_that_must_be_made_is_made_and_parses(
    server: RunningServer, client: OpenAI, choice: Any, parallel: bool
) -> None:
    wander(server)
    with client.chat.completions.stream(
        model=MODEL,
        messages=QUESTION,
        tools=[openai.pydantic_function_tool(Temperature)],
        tool_choice=choice,
        parallel_tool_calls=parallel,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        seed=4,
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.delta") > 3
    assert final.choices[0].finish_reason == "tool_calls"
    calls = final.choices[0].message.tool_calls
    assert calls
    assert parallel or len(calls) == 1
    for call in calls:
        assert isinstance(call.function.parsed_arguments, Temperature)


def test_parse_gives_the_arguments_as_the_pydantic_model(server: RunningServer, client: OpenAI) -> None:
    wander(server)
    answer = client.chat.completions.parse(
        model=MODEL,
        messages=QUESTION,
        tools=[openai.pydantic_function_tool(Temperature)],
        tool_choice="required",
        n=3,
        seed=9,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}},
    )
    for choice in answer.choices:
        assert choice.message.tool_calls
        assert all(isinstance(call.function.parsed_arguments, Temperature) for call in choice.message.tool_calls)


def test_a_strict_function_is_held_to_its_schema_when_the_model_calls_it(server: RunningServer, client: OpenAI) -> None:
    server.say('Wait.<tool_call>\n{"name": "Temperature", "arguments": {"town": "Oslo", "unit": "K"}}\n</tool_call>')
    answer = client.chat.completions.parse(
        model=MODEL, messages=QUESTION, tools=[openai.pydantic_function_tool(Temperature)], max_tokens=300
    )
    message = answer.choices[0].message
    assert message.content == "Wait."
    assert message.tool_calls is not None
    assert isinstance(message.tool_calls[0].function.parsed_arguments, Temperature)


def test_the_reasoning_comes_before_the_constraint(server: RunningServer, client: OpenAI) -> None:
    """`</think>` is one token of this vocabulary; the model may think first, and calls then."""
    server.say("<think>Shall I?</think>No.")
    answer = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS, tool_choice="required")
    message = answer.choices[0].message
    assert message.tool_calls
    assert message.content is None
    assert (message.model_extra or {})["reasoning_content"] == "Shall I?"


@pytest.mark.parametrize("thinking", [True, False])
def test_where_reasoning_has_no_mark_of_its_own_the_constraint_holds_at_once(
    monkeypatch: pytest.MonkeyPatch, thinking: bool
) -> None:
    """Also if the prompt has opened the reasoning: what must be content or calls is no reasoning then."""

    def unmarked(*of_model: Any) -> TokenTable:
        return replace(token_table(*of_model), think=None, end_think=None)

    monkeypatch.setattr(running_server, "token_table", unmarked)
    extra = {"chat_template_kwargs": {"thinking": thinking}}
    form: Any = {"type": "json_object"}
    strict: Any = [openai.pydantic_function_tool(Temperature)]
    with (
        running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server,
        strict_client(server.base_url) as client,
    ):
        server.say('{"degrees": 7}')
        ask = partial(client.chat.completions.create, model=MODEL, messages=QUESTION, extra_body=extra)
        assert ask(response_format=form).choices[0].message.content == '{"degrees": 7}'
        wander(server)
        assert ask(tools=TOOLS, tool_choice="required").choices[0].message.tool_calls
        server.say("I must ask.")
        message = ask(tools=strict).choices[0].message
        thought = (message.model_extra or {}).get("reasoning_content")
        assert (thought or message.content) == "I must ask."
        assert bool(thought) is thinking, "text that may stand before a call may be reasoning"


def test_without_parallel_calls_there_is_one(server: RunningServer, client: OpenAI) -> None:
    call = '<tool_call>\n{"name": "temperature", "arguments": {}}\n</tool_call>'
    server.say(f"{call}\n{call}")
    both = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS)
    assert len(both.choices[0].message.tool_calls or ()) == 2
    one = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS, parallel_tool_calls=False)
    assert len(one.choices[0].message.tool_calls or ()) == 1


def test_a_form_beside_tools(server: RunningServer, client: OpenAI) -> None:
    """The content has the form; or there is a call instead."""
    server.say('{"degrees": 7}')
    form: Any = {"type": "json_object"}
    said = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS, response_format=form)
    assert said.choices[0].message.content == '{"degrees": 7}'
    server.say('<tool_call>\n{"name": "temperature", "arguments": {"city": "Oslo"}}\n</tool_call>')
    called = client.chat.completions.create(model=MODEL, messages=QUESTION, tools=TOOLS, response_format=form)
    assert called.choices[0].finish_reason == "tool_calls"


def test_a_strict_schema_that_cannot_be_honoured_is_refused(client: OpenAI) -> None:
    parameters = {"type": "object", "properties": {"a": {"not": {"type": "null"}}}}
    tool: Any = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
    with pytest.raises(openai.BadRequestError, match='"not"') as refusal:
        client.chat.completions.create(model=MODEL, messages=QUESTION, tools=[tool])
    assert refusal.value.param == "tools"
