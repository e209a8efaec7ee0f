from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from service.api.answers.response_answer import response_json, response_usage
from service.errors import ContextLengthExceeded, RateLimited, ServerError, Unavailable
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import response_events
from tests.text import tiny_tokenizers

RESPONSES = "/v1/responses"
TOOLS = [{"type": "function", "name": "rain", "parameters": {"type": "object", "properties": {}}}]
SAID = '<think>So.</think>Well, ä<tool_call>{"name": "rain", "arguments": {}}</tool_call>'


@pytest.fixture(scope="module")
def able() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        yield server


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "input": "hi", "tools": TOOLS, **fields}


def whole(server: RunningServer, **fields: Any) -> dict[str, Any]:
    response = httpx.post(f"{server.base_url}{RESPONSES}", json=body(**fields))
    assert response.status_code == 200, response.text
    return dict(response.json())


def streamed(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    response = httpx.post(f"{server.base_url}{RESPONSES}", json=body(stream=True, **fields))
    assert response.status_code == 200, response.text
    return response_events(response.text)


def without_ids(value: Any) -> Any:
    if isinstance(value, dict):
        changing = {"id", "call_id", "created_at", "completed_at"}
        return {name: without_ids(each) for name, each in value.items() if name not in changing}
    return [without_ids(each) for each in value] if isinstance(value, list) else value


BETWEEN = f"One <b> \n{SAID.partition('ä')[2]}<|two|> then"
SCORED = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


@pytest.mark.parametrize("fields", [{}, {"max_output_tokens": 3}, {"tool_choice": "none"}, SCORED])
@pytest.mark.parametrize("text", [SAID, BETWEEN, "plain", ""])
def test_streamed_and_whole_are_one_response(able: RunningServer, text: str, fields: dict[str, Any]) -> None:
    able.say(text)
    events = streamed(able, **fields)
    assert without_ids(events[-1]["response"]) == without_ids(whole(able, **fields))


def test_a_stream_begins_at_once_and_ends_with_its_response(able: RunningServer) -> None:
    able.say(SAID)
    events = streamed(able)
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    for event in events[:2]:
        response = event["response"]
        assert (response["status"], response["output"], response["usage"]) == ("in_progress", [], None)
    assert events[-1]["type"] == "response.completed"
    assert [event["type"] for event in events].count("response.completed") == 1
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
    assert {event["response"]["id"] for event in events if "response" in event} == {events[0]["response"]["id"]}


def test_it_is_told_of_before_there_is_a_token(able: RunningServer) -> None:
    able.say("late")
    able.executor.gate.clear()
    with httpx.stream("POST", f"{able.base_url}{RESPONSES}", json=body(stream=True)) as response:
        lines = response.iter_lines()
        assert next(lines) == "event: response.created"
        able.executor.gate.set()
        assert "event: response.completed" in list(lines)


@pytest.mark.parametrize(("text", "num_tokens"), [("plain words", 2), (SAID, 4)])
def test_what_is_cut_says_so(able: RunningServer, text: str, num_tokens: int) -> None:
    able.say(text)
    events = streamed(able, max_output_tokens=num_tokens)
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"]) == ("response.incomplete", "incomplete")
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["output"][-1]["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == num_tokens


def test_usage_counts_what_was_thought_and_what_was_cached(able: RunningServer) -> None:
    ids = able.say("<think>So.</think>Well")
    usage = whole(able)["usage"]
    assert usage["output_tokens"] == len(ids)
    assert 0 < usage["output_tokens_details"]["reasoning_tokens"] < len(ids)
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    fields = {
        "prompt_tokens": 3,
        "completion_tokens": 2,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    assert response_usage(fields)["input_tokens_details"]["cached_tokens"] == 1


def test_logprobs_are_those_of_the_text(able: RunningServer) -> None:
    """Not of the reasoning, of the blank behind it, of calls, or of the token that ends it all."""
    able.say("<think>So.</think>\n\nWell, then")
    answer = whole(able, **SCORED)
    (part,) = answer["output"][1]["content"]
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"] == "Well, then"
    assert all(len(entry["top_logprobs"]) == 2 for entry in part["logprobs"])
    events = streamed(able, **SCORED)
    told = [entry for e in events if e["type"] == "response.output_text.delta" for entry in e["logprobs"]]
    assert told == part["logprobs"]


def test_each_message_has_the_logprobs_of_its_own_tokens(able: RunningServer) -> None:
    """Also of text that was held back for it might have become a call."""
    able.say(BETWEEN)
    messages = [item["content"][0] for item in whole(able, **SCORED)["output"] if item["type"] == "message"]
    assert ["".join(entry["token"] for entry in part["logprobs"]).strip() for part in messages] == [
        "One <b>",
        "<|two|> then",
    ]
    assert [part["text"].strip() for part in messages] == ["One <b>", "<|two|> then"]


def test_no_logprobs_unless_asked_for(able: RunningServer) -> None:
    able.say("Well")
    assert whole(able)["output"][0]["content"][0]["logprobs"] == []


def test_many_logprobs_are_written_elsewhere_and_in_order(able: RunningServer) -> None:
    able.say("one two three four " * 40)
    fields = {"include": SCORED["include"], "top_logprobs": 20}
    events = streamed(able, **fields)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert without_ids(events[-1]["response"]) == without_ids(whole(able, **fields))


def test_a_request_that_fails_tells_its_stream(able: RunningServer) -> None:
    able.say("a b c d e f g h " * 50)
    able.executor.delay_s = 0.005
    with httpx.stream("POST", f"{able.base_url}{RESPONSES}", json=body(stream=True)) as response:
        text = ""
        for line in response.iter_lines():
            text += line + "\n"
            if "output_text.delta" in line:
                able.executor.fault = RuntimeError("broken")
    able.executor.fault = None
    events = response_events(text)
    error, failed = events[-2:]
    assert (error["type"], failed["type"]) == ("error", "response.failed")
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "server_error", "message": error["message"]}


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ServerError("x"), "server_error"),
        (Unavailable("x"), "server_error"),
        (RateLimited("x"), "rate_limit_exceeded"),
        (ContextLengthExceeded("x"), "invalid_prompt"),
    ],
)
def test_codes_of_faults(error: Any, code: str) -> None:
    response = json.loads(response_json(b'{"id":"resp_1"}', "failed", error=error))
    assert response["error"] == {"code": code, "message": "x"}
    assert (response["id"], response["completed_at"], response["output"]) == ("resp_1", None, [])
