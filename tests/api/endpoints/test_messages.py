from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce
from typing import Any

import httpx
import pytest

from service.api.endpoints.openapi import describe
from service.protocol.messages import Message, TokensCount
from tests.api.messages_wire import COUNT_TOKENS, MESSAGES, ask, error_of, events_of, streamed
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT, chat
from tests.text import tiny_tokenizers

HELLO = [{"role": "user", "content": "hello"}]


def test_answers(server: RunningServer, http: httpx.Client) -> None:
    server.say("Hi there")
    answer = http.post(MESSAGES, json=ask())
    message = Message.model_validate(answer.json(), strict=True, extra="forbid")
    assert message.model_dump() == answer.json(), "no key is left out: clients read the nulls"
    assert (message.model, message.stop_reason) == (MODEL, "end_turn")
    assert [block.model_dump() for block in message.content] == [{"type": "text", "text": "Hi there"}]


def test_counts_tokens_without_the_engine(server: RunningServer, http: httpx.Client) -> None:
    before = server.executor.num_iterations
    answer = http.post(COUNT_TOKENS, json={"model": MODEL, "messages": HELLO})
    assert TokensCount.model_validate(answer.json(), strict=True, extra="forbid").input_tokens > 0
    assert server.executor.num_iterations == before
    tokens = http.post("/tokenize", json={"messages": HELLO}).json()
    assert answer.json()["input_tokens"] == tokens["count"]
    longer = [{"role": "user", "content": "hello " * 5000}]
    assert http.post(COUNT_TOKENS, json={"model": MODEL, "messages": longer}).json()["input_tokens"] > 5000


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
def test_headers_and_the_query_of_its_clients_change_nothing(http: httpx.Client, path: str) -> None:
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219", "x-api-key": "any"}
    body = {"model": MODEL, "messages": HELLO} | ({"max_tokens": 5} if path == MESSAGES else {})
    assert http.post(path, params={"beta": "true"}, headers=headers, json=body).status_code == 200


@pytest.mark.parametrize("path", [MESSAGES, COUNT_TOKENS])
@pytest.mark.parametrize(
    ("content", "content_type", "status", "kind"),
    [
        (b"{", "application/json", 400, "invalid_request_error"),
        (b"[]", "application/json", 400, "invalid_request_error"),
        (b"{}", "application/json", 400, "invalid_request_error"),
        (b"{}", "text/plain", 415, "invalid_request_error"),
        (
            b'{"model":"gpt-4","max_tokens":5,"messages":[{"role":"user","content":"a"}]}',
            "application/json",
            404,
            "not_found_error",
        ),
    ],
)
def test_refusals(http: httpx.Client, path: str, content: bytes, content_type: str, status: int, kind: str) -> None:
    refused = http.post(path, content=content, headers={"content-type": content_type})
    assert (refused.status_code, error_of(refused)["type"]) == (status, kind)


def test_loading_and_draining() -> None:
    with running(Scene(ready=False)) as server, httpx.Client(base_url=server.base_url) as http:
        for path in (MESSAGES, COUNT_TOKENS):
            refused = http.post(path, json=ask())
            assert (refused.status_code, error_of(refused)["type"]) == (503, "api_error")
            assert int(refused.headers["retry-after"]) > 0


def test_overload_is_anthropics_own_status() -> None:
    """Refused after it has waited too long: whole by the status, in a stream by an event."""
    scheduler = replace(Scene().scheduler, max_num_seqs=1, max_waiting_s=0.1)
    with running(Scene(scheduler=scheduler)) as server, httpx.Client(base_url=server.base_url) as http:
        server.play(lambda prompt, so_far, seed: 75)
        server.executor.delay_s = 0.005
        with http.stream("POST", MESSAGES, json=ask(stream=True, max_tokens=2000)):
            refused = http.post(MESSAGES, json=ask())
            assert (refused.status_code, error_of(refused)["type"]) == (529, "overloaded_error")
            assert int(refused.headers["retry-after"]) > 0
            last = events_of(http.post(MESSAGES, json=ask(stream=True)).text)[-1]
            assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")


def test_a_key_has_its_limit_here_too() -> None:
    config = replace(Scene().config, api_keys=("ann:sk-a",), max_requests_per_key=1)
    key = {"x-api-key": "sk-a"}
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        server.play(lambda prompt, so_far, seed: 75)
        server.executor.delay_s = 0.002
        with http.stream("POST", MESSAGES, json=ask(stream=True, max_tokens=2000), headers=key):
            refused = http.post(MESSAGES, json=ask(), headers=key)
            assert (refused.status_code, error_of(refused)["type"]) == (429, "rate_limit_error")
            assert http.post(CHAT, json=chat("hi"), headers=key).status_code == 429, "of all forms together"
            counted = http.post(COUNT_TOKENS, json={"model": MODEL, "messages": HELLO}, headers=key)
            assert counted.status_code == 200, "what does not generate is not counted"


def test_a_client_that_leaves_frees_what_it_held(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.002
    with http.stream("POST", MESSAGES, json=ask(stream=True, max_tokens=2000)) as response:
        next(response.iter_lines())
    server.check_idle()
    assert server.executor.num_iterations < 500


def test_a_call_can_be_traced_by_its_id(server: RunningServer, http: httpx.Client) -> None:
    server.say("Hi")
    message = streamed(server)[0]["message"]
    assert http.get(f"/v1/requests/{message['id']}/trace").json()["outcome"] == "finished"


def test_the_description_knows_its_events_and_errors() -> None:
    description = describe(Scene().config)
    for path in (MESSAGES, COUNT_TOKENS):
        responses = description["paths"][path]["post"]["responses"]
        assert responses["4XX"]["content"]["application/json"]["schema"]["$ref"].endswith("/MessagesErrorBody")
    event = description["paths"][MESSAGES]["post"]["responses"]["200"]["content"]["text/event-stream"]["itemSchema"]
    assert event["required"] == ["event", "data"]
    assert "[DONE]" not in str(event)


EVERYTHING: dict[str, Any] = {
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "redacted_thinking", "data": "d"},
                {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "i", "name": "f", "input": {"a": [1, {"b": None}]}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "i",
                    "content": [{"type": "text", "text": "r"}],
                    "is_error": True,
                }
            ],
        },
        {"role": "system", "content": "x"},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": False}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": False},
    "thinking": {"type": "enabled", "budget_tokens": 5, "display": "omitted"},
    "output_config": {"effort": "low", "format": None},
    "stop_sequences": ["q"],
    "metadata": {"user_id": "u"},
    "max_tokens": 8,
    "chat_template_kwargs": {"thinking": True},
}
JUNK: list[Any] = [None, True, 0, -1, 1.5, 2**63, 1e308, "", "\0", [], {}, [[]], [None], {"a": {}}, ["x"] * 99, "any"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


@pytest.fixture(scope="module")
def able() -> Iterator[RunningServer]:
    with running(Scene(chat_template=tiny_tokenizers.TOOL_TEMPLATE)) as server:
        yield server


@pytest.mark.parametrize("place", list(places(EVERYTHING)), ids=lambda place: ".".join(map(str, place)))
def test_whatever_stands_in_a_place_the_answer_is_one_of_the_three(able: RunningServer, place: tuple[Any, ...]) -> None:
    """A message, a whole stream, or a refusal of the client's fault."""
    able.say('<think>so</think>I look.<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>')
    junk = random.Random(str(place)).sample(JUNK, 2)
    with httpx.Client(base_url=able.base_url, timeout=30) as http:
        for value in junk:
            body = copy.deepcopy({"model": MODEL, "stream": value is junk[0], **EVERYTHING})
            reduce(lambda holder, key: holder[key], place[:-1], body)[place[-1]] = value
            answer = http.post(MESSAGES, json=body)
            if answer.status_code != 200:
                assert 400 <= answer.status_code < 500
                assert error_of(answer)["message"]
            elif body["stream"] is True:
                assert events_of(answer.text)[-1]["type"] == "message_stop"
            else:
                Message.model_validate(answer.json(), strict=True, extra="forbid")
