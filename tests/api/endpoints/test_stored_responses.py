from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import error_of
from tests.e2e.strict_client import strict_client
from tests.text import tiny_tokenizers

RESPONSES = "/v1/responses"
TOOLS: Any = [{"type": "function", "name": "rain", "parameters": {"type": "object", "properties": {}}, "strict": False}]
CALL = '<think>So.</think>Well<tool_call>{"name": "rain", "arguments": {}}</tool_call>'
CONFIG = replace(
    Scene().config, responses_store_bytes=200_000, responses_store_entries=20, api_keys=("ann:none", "bob:sk-b")
)
ANN, BOB = ({"Authorization": f"Bearer {key}"} for key in ("none", "sk-b"))


@pytest.fixture(scope="module")
def storing() -> Iterator[RunningServer]:
    scene = Scene(config=replace(CONFIG, max_requests_per_key=3), chat_template=tiny_tokenizers.TOOL_TEMPLATE)
    with running(scene) as server:
        yield server


@pytest.fixture
def client(storing: RunningServer) -> Iterator[OpenAI]:
    storing.reset()
    with strict_client(storing.base_url) as client:
        yield client
    storing.executor.gate.set()
    storing.check_idle()


def create(client: OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{"model": MODEL, "input": "hi", **fields})


def wait_for(client: OpenAI, response: Any) -> Any:
    deadline_s = time.monotonic() + 30
    while response.status in ("queued", "in_progress") and time.monotonic() < deadline_s:
        time.sleep(0.01)
        response = client.responses.retrieve(response.id)
    return response


def test_what_was_answered_is_found_again_whole_or_streamed(storing: RunningServer, client: OpenAI) -> None:
    storing.say(CALL)
    whole = create(client, tools=TOOLS, metadata={"a": "b"})
    assert client.responses.retrieve(whole.id) == whole
    *_, last = create(client, tools=TOOLS, stream=True)
    assert client.responses.retrieve(last.response.id) == last.response


def test_what_is_not_to_be_stored_is_not(storing: RunningServer, client: OpenAI) -> None:
    storing.say("a")
    response = create(client, store=False)
    with pytest.raises(openai.NotFoundError, match=r"Response with id .* not found\."):
        client.responses.retrieve(response.id)


def test_only_its_own_client_finds_it(storing: RunningServer, client: OpenAI) -> None:
    storing.say("a")
    response = create(client)
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        url = f"{storing.base_url}{RESPONSES}/{response.id}{path}"
        assert httpx.request(method, url, headers=BOB).status_code == 404
    body = {"model": MODEL, "input": "x", "previous_response_id": response.id}
    refused = httpx.post(f"{storing.base_url}{RESPONSES}", json=body, headers=BOB)
    assert error_of(refused)["code"] == "previous_response_not_found"
    assert client.responses.retrieve(response.id) == response


def test_deleted_is_gone(storing: RunningServer, client: OpenAI) -> None:
    storing.say("a")
    response = create(client)
    client.responses.delete(response.id)
    for again in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            again(response.id)


def test_a_conversation_goes_on_as_if_all_of_it_had_been_sent(storing: RunningServer, client: OpenAI) -> None:
    """But for the instructions of the turns before."""
    storing.say(CALL)
    first = create(client, tools=TOOLS, instructions="Never said again.", input="Oslo?")
    call = first.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "7 mm"}
    storing.say("Rain.")
    second = create(client, tools=TOOLS, previous_response_id=first.id, input=[result])
    third = create(client, tools=TOOLS, previous_response_id=second.id, input="And Rome?", instructions="Be brief.")
    said = [item.model_dump(exclude_none=True) for response in (first, second) for item in response.output]
    turns = [
        {"role": "user", "content": "Oslo?"},
        *said[:-1],
        result,
        said[-1],
        {"role": "user", "content": "And Rome?"},
    ]
    whole = create(client, tools=TOOLS, input=turns, instructions="Be brief.")
    assert third.usage.input_tokens == whole.usage.input_tokens
    assert third.previous_response_id == second.id
    forked = create(client, tools=TOOLS, previous_response_id=first.id, input=[result])
    assert forked.usage.input_tokens == second.usage.input_tokens, "a turn may be gone on from twice"


def test_input_items_are_the_whole_conversation(storing: RunningServer, client: OpenAI) -> None:
    storing.say(CALL)
    first = create(client, tools=TOOLS)
    second = create(client, tools=TOOLS, previous_response_id=first.id, input=[{"role": "user", "content": "go on"}])
    listed = list(client.responses.input_items.list(second.id, order="asc", limit=2))
    kinds = ["message", "reasoning", "message", "function_call", "message"]
    assert [item.type for item in listed] == kinds
    assert [item.id for item in listed[1:4]] == [item.id for item in first.output]
    assert [item.type for item in client.responses.input_items.list(second.id)] == kinds[::-1]


@pytest.mark.parametrize(
    ("query", "param"), [("limit=0", "limit"), ("limit=x", "limit"), ("order=up", "order"), ("after=x", "after")]
)
def test_pages_that_are_none(storing: RunningServer, client: OpenAI, query: str, param: str) -> None:
    response = create(client)
    url = f"{storing.base_url}{RESPONSES}/{response.id}/input_items?{query}"
    refused = httpx.get(url, headers=ANN)
    assert (refused.status_code, error_of(refused)["param"]) == (400, param)


def test_in_the_background(storing: RunningServer, client: OpenAI) -> None:
    storing.say(CALL)
    storing.executor.gate.clear()
    response = create(client, tools=TOOLS, background=True)
    assert (response.status, response.output, response.background) == ("queued", [], True)
    assert client.responses.retrieve(response.id).status == "in_progress"
    with pytest.raises(openai.BadRequestError, match="in progress"):
        create(client, previous_response_id=response.id)
    storing.executor.gate.set()
    done = wait_for(client, response)
    assert (done.status, done.output_text) == ("completed", "Well")
    assert client.responses.cancel(response.id) == done, "what has ended stays as it is"
    assert create(client, previous_response_id=response.id).status == "completed"


def test_what_is_cancelled_deleted_or_driven_out_is_stopped(storing: RunningServer, client: OpenAI) -> None:
    storing.play(lambda prompt, so_far, seed: 75)
    storing.executor.delay_s = 0.002
    cancelled, deleted = create(client, background=True), create(client, background=True)
    assert client.responses.cancel(cancelled.id).status == "cancelled"
    client.responses.delete(deleted.id)
    driven_out = create(client, background=True)
    for _ in range(20):
        create(client, max_output_tokens=1)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(driven_out.id)
    storing.check_idle()
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(cancelled.id)
    assert storing.metric("headrace_aborts_total", reason="response_cancelled") >= 3


def test_cancelled_stays_cancelled(storing: RunningServer, client: OpenAI) -> None:
    storing.play(lambda prompt, so_far, seed: 75)
    response = create(client, background=True, max_output_tokens=500)
    client.responses.cancel(response.id)
    storing.check_idle()
    assert client.responses.retrieve(response.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a synchronous response"):
        client.responses.cancel(create(client, max_output_tokens=1).id)


def test_a_fault_in_the_background_is_told(storing: RunningServer, client: OpenAI) -> None:
    storing.say("a b c")
    storing.executor.fault = RuntimeError("broken")
    response = create(client, background=True)
    failed = wait_for(client, response)
    storing.executor.fault = None
    assert (failed.status, failed.error.code) == ("failed", "server_error")


def test_a_key_has_only_so_many_in_the_background(storing: RunningServer, client: OpenAI) -> None:
    storing.say("a")
    storing.executor.gate.clear()
    running_ones = [create(client, background=True) for _ in range(3)]
    with pytest.raises(openai.RateLimitError):
        create(client, background=True)
    storing.executor.gate.set()
    assert [wait_for(client, each).status for each in running_ones] == ["completed"] * 3
    assert create(client, background=True).status == "queued"


def test_the_store_is_bounded(storing: RunningServer, client: OpenAI) -> None:
    storing.say("a")
    responses = [create(client, input="x" * 1500) for _ in range(40)]
    found = []
    for response in responses:
        url = f"{storing.base_url}{RESPONSES}/{response.id}"
        found.append(httpx.get(url, headers=ANN).status_code == 200)
    assert found == [False] * 20 + [True] * 20


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_none"}, "previous_response_id"),
        ({"background": True, "store": False}, "background"),
    ],
)
def test_refusals(storing: RunningServer, client: OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        create(client, **fields)
    assert refused.value.param == param


@pytest.mark.parametrize("fields", [{"previous_response_id": "resp_1"}, {"background": True}])
def test_a_server_that_keeps_nothing_says_so(http: httpx.Client, fields: dict[str, Any]) -> None:
    refused = http.post(RESPONSES, json={"model": MODEL, "input": "hi", **fields})
    assert error_of(refused)["code"] == "unsupported_parameter"
    assert "--responses-store" in error_of(refused)["message"]
    assert http.get(f"{RESPONSES}/resp_1").status_code == 404


def test_a_stream_that_is_left_is_not_kept(storing: RunningServer, client: OpenAI) -> None:
    storing.play(lambda prompt, so_far, seed: 75)
    storing.executor.delay_s = 0.002
    body = {"model": MODEL, "input": "hi", "stream": True}
    with httpx.stream("POST", f"{storing.base_url}{RESPONSES}", json=body, headers=ANN) as response:
        lines = response.iter_lines()
        next(lines)
        created = response_events_of(next(lines))
    storing.check_idle()
    assert httpx.get(f"{storing.base_url}{RESPONSES}/{created}", headers=ANN).status_code == 404


def response_events_of(line: str) -> str:
    """The id of the response that the event tells of."""
    return str(httpx.Response(200, content=line.removeprefix("data: ")).json()["response"]["id"])


def test_a_conversation_that_is_kept_is_counted(storing: RunningServer, client: OpenAI) -> None:
    storing.say("Hello there")
    first = create(client)
    counted = client.responses.input_tokens.count(model=MODEL, input="and?", previous_response_id=first.id)
    second = create(client, input="and?", previous_response_id=first.id)
    assert counted.input_tokens == second.usage.input_tokens > first.usage.input_tokens
    unknown = httpx.post(f"{storing.base_url}{RESPONSES}/input_tokens", json={"input": "a", "sparkle": 1}, headers=ANN)
    assert unknown.headers["x-ignored-params"] == "sparkle"
