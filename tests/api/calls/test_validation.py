"""Each refusal at the door, over HTTP: its status, the field it names, and its limit."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from service.api.calls.validation import check_call
from service.api.calls.wire_parsing import parse
from service.api.serving_state import GenerationDefaults
from service.config import ApiConfig
from service.protocol.completions import CompletionRequest
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of, events_of

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [2**64]}, "prompt"),
    ({"prompt": [["a"]]}, "prompt"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 2**64}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_p": -0.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"seed": 2**63}, "seed"),
    ({"seed": -(2**63) - 1}, "seed"),
    ({"seed": 2**63 - 1, "n": 2}, "seed"),
    ({"seed": "a"}, "seed"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"stop": list("abcdefghijklmnopq")}, "stop"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop"),
    ({"stop": "é" * 513}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop"),
    ({"ignore_eos": "yes"}, "ignore_eos"),
    ({"stream": 1}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"stream": True, "stream_options": []}, "stream_options"),
    ({"return_token_ids": 1}, "return_token_ids"),
    ({"user": 5}, "user"),
    ({"min_tokens": 6, "max_tokens": 5}, "min_tokens"),
    ({"min_tokens": 17}, "min_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(fields)[:40] for fields, _ in REFUSED])
def test_refusals_name_the_field(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    body = {name: value for name, value in {**completion(), **fields}.items() if value is not None}
    response = http.post(COMPLETIONS, json=body)
    assert response.status_code == 400, response.text
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (chat(5), "messages[0].content"),
        ({"model": MODEL}, "messages"),
        ({"model": MODEL, "messages": []}, "messages"),
        ({"model": MODEL, "messages": "hi"}, "messages"),
        ({"model": MODEL, "messages": [{"content": "x"}]}, "messages[0].role"),
        ({"model": MODEL, "messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        (chat([{"type": 5}]), "messages[0].content[0].type"),
        (chat([{"text": "a"}]), "messages[0].content[0].type"),
        (chat("a", n=129), "n"),
    ],
)
def test_chat_refusals_name_the_field(http: httpx.Client, body: dict[str, Any], param: str) -> None:
    response = http.post(CHAT, json=body)
    assert response.status_code == 400
    assert error_of(response)["param"] == param


@pytest.mark.parametrize(
    ("field", "limit"), [({"n": 129}, "128"), ({"stop": list("abcdefghijklmnopq")}, "16"), ({"top_p": 2}, "1")]
)
def test_refusals_say_the_limit(http: httpx.Client, field: dict[str, Any], limit: str) -> None:
    assert limit in error_of(http.post(COMPLETIONS, json=completion(**field)))["message"]


@pytest.mark.parametrize("route", [COMPLETIONS, CHAT])
def test_another_model_is_not_found(http: httpx.Client, route: str) -> None:
    body = {**completion(), **chat("hi"), "model": "gpt-" + "x" * 500}
    response = http.post(route, json=body)
    assert response.status_code == 404
    error = error_of(response)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert error["message"].endswith("this server has 'tiny/model', 'alias'.")
    assert len(error["message"]) < 150


@pytest.mark.parametrize(
    ("route", "body"), [(COMPLETIONS, completion(model="alias")), (CHAT, {**chat("hi"), "model": "alias"})]
)
def test_under_whatever_name_it_is_asked_the_first_is_in_the_answer(
    http: httpx.Client, route: str, body: dict[str, Any]
) -> None:
    assert http.post(route, json=body).json()["model"] == MODEL
    events = events_of(http.post(route, json={**body, "stream": True}).text)
    assert {event["model"] for event in events} == {MODEL}


def test_null_is_as_if_absent(http: httpx.Client) -> None:
    names = ["max_tokens", "temperature", "top_p", "top_k", "seed", "n", "stop", "stream", "stream_options", "user"]
    assert http.post(COMPLETIONS, json=completion() | dict.fromkeys(names)).status_code == 200


def test_unknown_fields_are_named_in_a_header(http: httpx.Client) -> None:
    body = completion(colour="red", mood=None) | {"bad\r\nname: x": 1, "größe": 2}
    response = http.post(COMPLETIONS, json=body)
    assert response.status_code == 200
    assert response.headers["x-ignored-params"] == "colour,bad??name??x,gr??e"
    response = http.post(CHAT, json={**chat("hi"), "stream": True, "stream_options": {"x": 1}, "y": 1})
    assert response.headers["x-ignored-params"] == "y,stream_options.x"
    form = {"type": "json_schema", "a": 1, "json_schema": {"name": "n", "schema": {"type": "object"}, "b": 1}}
    response = http.post(COMPLETIONS, json=completion(response_format=form))
    assert response.headers["x-ignored-params"] == "response_format.a,response_format.json_schema.b"
    assert "x-ignored-params" not in http.post(COMPLETIONS, json=completion()).headers


def test_the_header_of_unknown_fields_is_bounded(http: httpx.Client) -> None:
    response = http.post(COMPLETIONS, json=completion(**{f"{'x' * 500}{index}": 1 for index in range(500)}))
    assert response.status_code == 200
    assert len(response.headers["x-ignored-params"]) < 32 * 65


def test_strict_params_refuse_unknown_fields() -> None:
    config = ApiConfig(served_model_names=(MODEL,), strict_params=True)
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        response = http.post(COMPLETIONS, json=completion(colour="red"))
        assert response.status_code == 400
        assert error_of(response)["param"] == "colour"
        body = {"model": MODEL, "messages": [{"role": "user", "content": "a", "mood": 1}]}
        assert error_of(http.post(CHAT, json=body))["param"] == "messages.mood"
        assert http.post(COMPLETIONS, json=completion(user="me", metadata={"a": "b"})).status_code == 200


def test_checks_alone() -> None:
    config = ApiConfig(served_model_names=("m",))
    fields = parse(CompletionRequest, {"model": "m", "prompt": "x", "stop": "end", "seed": 7})
    call = check_call(fields, config, GenerationDefaults())
    assert call.stops.strings == ("end",)
    assert call.max_tokens is None
    assert call.sampling.seed == 7


def test_a_refused_request_costs_the_engine_nothing(server: RunningServer, http: httpx.Client) -> None:
    http.post(COMPLETIONS, json=completion(n=0))
    assert server.executor.num_iterations == 0
