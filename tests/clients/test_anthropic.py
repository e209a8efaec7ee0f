"""Anthropic's Python client, in strict use, against the real service. Installed by the extra `clients`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.conftest import MODEL
from tests.e2e.server_process import ServerProcess

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("default")]
anthropic = pytest.importorskip("anthropic")

QUESTION = [{"role": "user", "content": "What is Headrace?"}]
WEATHER = {
    "name": "weather",
    "description": "How warm it is.",
    "input_schema": {
        "type": "object",
        "properties": {"unit": {"type": "string", "enum": ["C", "F"]}},
        "required": ["unit"],
        "additionalProperties": False,
    },
}


USUAL: dict[str, Any] = {
    "model": MODEL,
    "max_tokens": 100,
    "messages": QUESTION,
    "extra_body": {"temperature": 0},  # no argument any more
}


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with anthropic.Anthropic(
        base_url=server.url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


def ask(client: Any, **fields: Any) -> Any:
    return client.messages.create(**{**USUAL, **fields})


def test_an_answer_whole_and_streamed(client: Any) -> None:
    whole = ask(client)
    (block,) = whole.content
    assert (whole.type, whole.role, whole.stop_reason, block.type) == ("message", "assistant", "end_turn", "text")
    assert "Headrace" in block.text
    assert whole.usage.output_tokens > 0
    with client.messages.stream(**USUAL) as stream:
        assert "".join(stream.text_stream) == block.text
        final = stream.get_final_message()
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


def test_a_tool_is_called_and_its_result_goes_back(client: Any) -> None:
    called = ask(client, tools=[WEATHER], tool_choice={"type": "tool", "name": "weather"})
    assert called.stop_reason == "tool_use"
    (use,) = [block for block in called.content if block.type == "tool_use"]
    assert use.name == "weather"
    assert use.input["unit"] in ("C", "F")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "7 degrees"}
    told = ask(
        client,
        tools=[WEATHER],
        messages=[*QUESTION, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}],
    )
    assert told.content[-1].type == "text"


def test_a_streamed_tool_call(client: Any) -> None:
    choice = {"type": "any", "disable_parallel_tool_use": True}
    with client.messages.stream(**USUAL, tools=[WEATHER], tool_choice=choice) as stream:
        final = stream.get_final_message()
    (use,) = [block for block in final.content if block.type == "tool_use"]
    assert use.input["unit"] in ("C", "F")


def test_stops_limits_and_counts(client: Any) -> None:
    stopped = ask(client, stop_sequences=["OpenAI"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "OpenAI")
    assert "OpenAI" not in stopped.content[0].text
    assert ask(client, max_tokens=3).stop_reason == "max_tokens"
    counted = client.messages.count_tokens(model=MODEL, messages=QUESTION)
    assert counted.input_tokens == ask(client).usage.input_tokens


def test_errors_are_its_own(client: Any) -> None:
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        ask(client, extra_body={"temperature": 9})
    with pytest.raises(anthropic.NotFoundError):
        ask(client, model="other")
