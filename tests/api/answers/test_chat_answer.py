from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest

from service.api.answers.chat_answer import assemble_message
from service.api.answers.generation import CollectedChoice
from service.core.request import FinishReason
from service.text.chat_output import ReasoningDelta
from service.text.tool_calls import CallDelta, TextDelta
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, chat, events_of
from tests.text import tiny_tokenizers

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("now", "weather")]
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Pärís", "days": 3}}\n</tool_call>'
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'


@pytest.fixture(scope="module")
def able() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        yield server


def whole(server: RunningServer, **fields: Any) -> dict[str, Any]:
    response = httpx.post(f"{server.base_url}{CHAT}", json=chat("hi", **fields))
    assert response.status_code == 200, response.text
    return dict(response.json())


def streamed(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    body = chat("hi", stream=True, stream_options={"include_usage": True}, **fields)
    response = httpx.post(f"{server.base_url}{CHAT}", json=body)
    assert response.status_code == 200, response.text
    return events_of(response.text)


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together from a stream of one choice; no delta but the last may be empty."""
    message: dict[str, Any] = {"content": ""}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            assert delta or choice["finish_reason"]
            message["content"] += delta.get("content", "")
            if "reasoning_content" in delta:
                message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
            for call in delta.get("tool_calls", []):
                calls = message.setdefault("tool_calls", [])
                if "id" in call:
                    assert call["index"] == len(calls)
                    calls.append({"id": call["id"], "type": call["type"], "function": call["function"]})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


CASES = [
    ("It is four.", "It is four.", None, [], "stop"),
    ("<think>two and two</think>\n\nIt is four.", "It is four.", "two and two", [], "stop"),
    (WEATHER, None, None, [("weather", {"city": "Pärís", "days": 3})], "tool_calls"),
    (f"Well.\n{NOW}\n{WEATHER}", "Well.", None, [("now", {}), ("weather", {"city": "Pärís", "days": 3})], "tool_calls"),
    (f"<think>hm {NOW}</think>{NOW}", None, f"hm {NOW}", [("now", {})], "tool_calls"),
]


@pytest.mark.parametrize(("text", "content", "reasoning", "calls", "reason"), CASES)
def test_whole_and_streamed_say_the_same(
    able: RunningServer, text: str, content: str | None, reasoning: str | None, calls: list[Any], reason: str
) -> None:
    able.say(text)
    answer = whole(able, tools=TOOLS)
    message = answer["choices"][0]["message"]
    assert answer["choices"][0]["finish_reason"] == reason
    assert message["content"] == content
    assert message.get("reasoning_content") == reasoning
    made = message.get("tool_calls", [])
    assert [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in made] == calls
    assert all(call["id"].startswith("call_") and call["type"] == "function" for call in made)

    events = streamed(able, tools=TOOLS)
    again = assembled(events)
    assert again["content"] == (content or "")
    assert again.get("reasoning_content") == reasoning
    assert [call["function"] for call in again.get("tool_calls", [])] == [call["function"] for call in made]
    assert events[-2]["choices"][0]["finish_reason"] == reason
    assert events[-1]["usage"] == answer["usage"]


def test_reasoning_tokens_are_counted(able: RunningServer) -> None:
    thought = able.tokenizer.encode("two and two", add_special_tokens=False)
    able.say("<think>two and two</think>\n\nIt is four.")
    end = able.tokenizer.encode("</think>", add_special_tokens=False)
    details = whole(able)["usage"]["completion_tokens_details"]
    assert details["reasoning_tokens"] == len(thought) + len(end)


def test_reasoning_that_the_prompt_opened(able: RunningServer) -> None:
    able.say("two and two</think>It is four.")
    message = whole(able, chat_template_kwargs={"thinking": True})["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("two and two", "It is four.")


def test_length_wins_over_tool_calls(able: RunningServer) -> None:
    able.say(WEATHER)
    choice = whole(able, tools=TOOLS, max_tokens=40)["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"
    assert streamed(able, tools=TOOLS, max_tokens=40)[-2]["choices"][0]["finish_reason"] == "length"


def test_arguments_are_streamed_as_they_come(able: RunningServer) -> None:
    able.say('<tool_call>{"name": "weather", "arguments": {"text": "one two three four five"}}</tool_call>')
    able.executor.delay_s = 0.01
    events = streamed(able, tools=TOOLS)
    able.executor.delay_s = 0.0
    fragments = [event for event in events if event["choices"] and event["choices"][0]["delta"].get("tool_calls")]
    assert len(fragments) > 5


@pytest.mark.parametrize(("stop", "is_cut"), [("Pä", True), ("}}", True), ("</tool_call>", False)])
def test_a_call_that_a_stop_string_has_cut_is_not_to_be_made(able: RunningServer, stop: str, is_cut: bool) -> None:
    able.say(f"{WEATHER}!")
    choice = whole(able, tools=TOOLS, stop=stop)["choices"][0]
    (end,) = [c for event in streamed(able, tools=TOOLS, stop=stop) for c in event["choices"] if c["finish_reason"]]
    assert choice["message"]["tool_calls"]
    assert choice["finish_reason"] == end["finish_reason"] == ("stop" if is_cut else "tool_calls")
    assert choice["stop_reason"] == stop


def test_without_tools_calls_are_text(able: RunningServer) -> None:
    able.say(NOW)
    assert whole(able)["choices"][0]["message"]["content"] == NOW
    assert whole(able, tools=TOOLS, tool_choice="none")["choices"][0]["message"]["content"] == NOW


def test_every_choice_has_calls_of_its_own(able: RunningServer) -> None:
    able.say(f"{NOW}{NOW}")
    choices = whole(able, tools=TOOLS, n=3)["choices"]
    ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 6


def test_ids_go_with_one_frame_each(able: RunningServer) -> None:
    able.say(f"<think>so</think>a{WEATHER}")
    events = streamed(able, tools=TOOLS, return_token_ids=True)
    ids = [i for event in events for choice in event["choices"] for i in choice.get("token_ids", [])]
    assert able.tokenizer.decode(ids) == f"<think>so</think>a{WEATHER}"


def test_a_message_from_its_deltas() -> None:
    numbers = count()
    deltas = [ReasoningDelta("a"), ReasoningDelta("b"), TextDelta("c"), CallDelta(0, "f", "{"), CallDelta(0, None, "}")]
    choice = CollectedChoice(0, 0, "", [], [], FinishReason.STOP, None, deltas)
    message = assemble_message(choice, lambda: f"id{next(numbers)}")
    assert (message.reasoning_content, message.content) == ("ab", "c")
    assert message.tool_calls is not None
    calls = [(call.id, call.function.name, call.function.arguments) for call in message.tool_calls]
    assert calls == [("id0", "f", "{}")]
    plain = assemble_message(CollectedChoice(0, 0, "", [], [], FinishReason.STOP), lambda: "")
    assert (plain.content, plain.tool_calls) == ("", None)
