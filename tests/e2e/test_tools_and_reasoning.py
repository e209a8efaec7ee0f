"""Tool calling and reasoning as openai-python sees them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from tests.api.running_server import MODEL, RunningServer, Scene, running
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
    url = f"{server.base_url}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0, _strict_response_validation=True) as client:
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
