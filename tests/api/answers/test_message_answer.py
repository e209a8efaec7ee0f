from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.api.messages_wire import MESSAGES, ask, assembled, streamed, whole, without_ids
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, chat
from tests.text import tiny_tokenizers

TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("now", "weather")]
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Pärís", "days": 3}}\n</tool_call>'
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
CALLED = {"type": "tool_use", "name": "weather", "input": {"city": "Pärís", "days": 3}}
CALLED_NOW = {"type": "tool_use", "name": "now", "input": {}}


@pytest.fixture(scope="module")
def able() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE, finds_prefixes=True)) as server:
        yield server


def shown(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The blocks without what is new in each."""
    return [
        {name: value for name, value in block.items() if name not in ("id", "signature")}
        for block in message["content"]
    ]


CASES = [
    ("It is four.", [{"type": "text", "text": "It is four."}], "end_turn"),
    ("", [], "end_turn"),
    (
        "<think>two and two</think>\n\nIt is four.",
        [{"type": "thinking", "thinking": "two and two"}, {"type": "text", "text": "It is four."}],
        "end_turn",
    ),
    (WEATHER, [CALLED], "tool_use"),
    (f"Well.\n{NOW}\n{WEATHER}", [{"type": "text", "text": "Well."}, CALLED_NOW, CALLED], "tool_use"),
    (f"<think>hm {NOW}</think>{NOW}", [{"type": "thinking", "thinking": f"hm {NOW}"}, CALLED_NOW], "tool_use"),
]


@pytest.mark.parametrize(("text", "blocks", "reason"), CASES)
def test_whole_and_streamed_say_the_same(
    able: RunningServer, text: str, blocks: list[dict[str, Any]], reason: str
) -> None:
    able.say(text)
    whole(able, tools=TOOLS)  # from now on the prompt's beginning is cached
    answer = whole(able, tools=TOOLS)
    assert (shown(answer), answer["stop_reason"], answer["stop_sequence"]) == (blocks, reason, None)
    assert without_ids(assembled(streamed(able, tools=TOOLS))) == without_ids(answer)


def test_a_plain_stream_is_the_whole_too(server: RunningServer) -> None:
    """Without tools, reasoning and stop strings, text goes the shortest way."""
    server.say("one two three four five six")
    assert without_ids(assembled(streamed(server))) == without_ids(whole(server))


def test_ids_are_new_and_of_one_kind(able: RunningServer) -> None:
    able.say(f"{NOW}{WEATHER}")
    answers = [whole(able, tools=TOOLS), assembled(streamed(able, tools=TOOLS))]
    ids = [block["id"] for answer in answers for block in answer["content"]]
    assert len(set(ids)) == 4
    assert all(call_id.startswith("toolu_") for call_id in ids)
    assert all(answer["id"].startswith("msg_") for answer in answers)


def test_a_stop_string_wins_over_calls(able: RunningServer) -> None:
    able.say(f"{NOW} and then")
    fields: dict[str, Any] = {"tools": TOOLS, "stop_sequences": ["then"]}
    answer = whole(able, **fields)
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "then")
    assert without_ids(assembled(streamed(able, **fields))) == without_ids(answer)


def test_a_call_that_is_cut_tells_what_is_complete_of_it(able: RunningServer) -> None:
    able.say('<tool_call>{"name": "weather", "arguments": {"city": "Rom", "days": 3}}</tool_call>')
    begun = '<tool_call>{"name": "weather", "arguments": {"city": "Rom", "da'
    num_tokens = len(able.tokenizer.encode(begun, add_special_tokens=False))
    answer = whole(able, tools=TOOLS, max_tokens=num_tokens)
    assert answer["stop_reason"] == "max_tokens"
    assert [block["input"] for block in answer["content"]] == [{"city": "Rom"}]


def test_thinking_may_be_left_out_of_the_answer(able: RunningServer) -> None:
    able.say("so it is</think>four")
    thinking = {"type": "adaptive", "display": "omitted"}
    whole(able, thinking=thinking)
    answer = whole(able, thinking=thinking)
    assert shown(answer) == [{"type": "thinking", "thinking": ""}, {"type": "text", "text": "four"}]
    assert answer["usage"]["output_tokens_details"]["thinking_tokens"] > 0
    assert without_ids(assembled(streamed(able, thinking=thinking))) == without_ids(answer)


def test_usage_is_that_of_the_chat_with_what_was_cached_apart(able: RunningServer) -> None:
    able.say("four")
    long = "what is two and two, and what is it not? " * 4
    cold, warm = (whole(able, messages=ask(long)["messages"])["usage"] for _ in range(2))
    assert (cold["cache_read_input_tokens"], cold["cache_creation_input_tokens"]) == (0, 0)
    assert warm["cache_read_input_tokens"] > 0
    assert warm["input_tokens"] + warm["cache_read_input_tokens"] == cold["input_tokens"]
    of_chat = httpx.post(f"{able.base_url}{CHAT}", json=chat(long)).json()["usage"]
    assert of_chat["prompt_tokens"] == cold["input_tokens"]
    assert of_chat["completion_tokens"] == cold["output_tokens"]


def test_a_stream_begins_before_anything_is_generated(able: RunningServer) -> None:
    able.say("four")
    able.executor.gate.clear()
    with (
        httpx.Client(base_url=able.base_url, timeout=10) as http,
        http.stream("POST", MESSAGES, json=ask(stream=True)) as response,
    ):
        lines = response.iter_lines()
        assert next(lines) == "event: message_start"
        able.executor.gate.set()
        assert "event: message_stop" in list(lines)


def test_a_stream_that_waits_pings() -> None:
    config = replace(Scene().config, stream_keepalive_s=0.03)
    with (
        running(Scene(config=config)) as server,
        httpx.Client(base_url=server.base_url, timeout=10) as http,
    ):
        server.executor.gate.clear()
        with http.stream("POST", MESSAGES, json=ask(stream=True)) as response:
            lines = response.iter_lines()
            assert [next(lines) for _ in range(6)][3:5] == ["event: ping", 'data: {"type":"ping"}']
            server.executor.gate.set()
            assert "event: message_stop" in list(lines)


def test_a_stream_that_fails_ends_with_an_error_event(server: RunningServer) -> None:
    server.play(lambda prompt, so_far, seed: 75 if len(so_far) < 3 else -1)
    response = httpx.post(f"{server.base_url}{MESSAGES}", json=ask(stream=True))
    *_, name, data, end = response.text.split("\n")[:-1]
    assert (name, end) == ("event: error", "")
    assert '"type":"api_error"' in data
    assert f'"request_id":"{response.headers["request-id"]}"' in data
    assert "[DONE]" not in response.text
    assert "message_stop" not in response.text
