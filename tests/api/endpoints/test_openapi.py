from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.routing import Route

from service.api.app import create_app
from service.api.endpoints.openapi import describe
from service.storage.storage import Storage
from tests.api.running_server import MODEL, RunningServer, Scene
from tests.api.wire import CHAT, COMPLETIONS, chat, completion

RESPONSES = "/v1/responses"
SCORED = "message.output_text.logprobs"
DESCRIPTION = describe(Scene().config)
SCHEMAS = DESCRIPTION["components"]["schemas"]


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_is_served(http: httpx.Client) -> None:
    assert http.get("/openapi.json").json() == DESCRIPTION


def test_every_reference_leads_somewhere() -> None:
    assert {name.removeprefix("#/components/schemas/") for name in references(DESCRIPTION)} <= set(SCHEMAS)


def test_describes_the_routes_that_there_are(server: RunningServer) -> None:
    app = create_app(
        server.state, server.scene.config, server.recorder, CollectorRegistry(), Storage(Path("unused"), 0)
    )
    served = {
        (re.sub(r":path}", "}", route.path), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}
    }
    assert served == {(path, method) for path, methods in DESCRIPTION["paths"].items() for method in methods}


@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("CompletionRequest", {"prompt"}),
        ("ChatRequest", {"messages"}),
        ("TokenizeRequest", {"prompt"}),
        ("DetokenizeRequest", {"tokens"}),
    ],
)
def test_says_what_is_required(name: str, required: set[str]) -> None:
    assert set(SCHEMAS[name]["required"]) == required
    assert SCHEMAS[name]["additionalProperties"] is True


BODIES = {COMPLETIONS: completion(), CHAT: chat("hi"), RESPONSES: {"model": MODEL, "input": "hi"}}


@pytest.mark.parametrize(("path", "body"), BODIES.items())
def test_answers_have_no_field_that_is_not_described(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    content = DESCRIPTION["paths"][path]["post"]["responses"]["200"]["content"]
    name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
    answer = http.post(path, json=body).json()
    assert set(answer) <= set(SCHEMAS[name]["properties"])
    assert set(SCHEMAS[name]["required"]) <= set(answer)


def test_errors_are_described(http: httpx.Client) -> None:
    for methods in DESCRIPTION["paths"].values():
        for operation in methods.values():
            assert {"200", "4XX", "5XX"} <= set(operation["responses"])
    assert set(http.post(CHAT, json={}).json()["error"]) == set(SCHEMAS["ErrorDetail"]["properties"])


def test_a_server_with_keys_says_so() -> None:
    config = Scene().config
    guarded = describe(replace(config, api_keys=("k",), guard_metrics=True))
    assert DESCRIPTION["security"] == []
    assert guarded["security"] == [{"bearer": []}]
    assert "security" not in guarded["paths"]["/metrics"]["get"]
    assert DESCRIPTION["paths"]["/metrics"]["get"]["security"] == []


def bounded_fields() -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (path, name, field)
        for path, shape in ((COMPLETIONS, "CompletionRequest"), (CHAT, "ChatRequest"), (RESPONSES, "ResponsesRequest"))
        for name, field in SCHEMAS[shape]["properties"].items()
        if "minimum" in field
    ]


@pytest.mark.parametrize(("path", "name", "field"), bounded_fields(), ids=lambda value: str(value)[:40])
def test_what_lies_outside_a_described_range_is_refused(
    http: httpx.Client, path: str, name: str, field: dict[str, Any]
) -> None:
    outside = [field["minimum"] - 1] + ([field["maximum"] + 1] if "maximum" in field else [])
    for value in outside:
        scored = {"include": [SCORED]} if path == RESPONSES else {"logprobs": True}
        response = http.post(path, json=BODIES[path] | (scored if name == "top_logprobs" else {}) | {name: value})
        assert response.status_code == 400
        assert response.json()["error"]["param"] == name


def test_a_flag_of_a_query_may_be_its_name_alone(server: RunningServer, http: httpx.Client) -> None:
    parameters = DESCRIPTION["paths"]["/v1/requests/{request_id}/trace"]["get"]["parameters"]
    (follow,) = [each["schema"] for each in parameters if each["name"] == "follow"]
    assert follow == {"anyOf": [{"type": "boolean"}, {"enum": ["", "1", "0"]}]}
    server.say("hello")
    http.post(CHAT, json=chat(request_id="one"))
    for value in ("", "1", "0", "true", "false"):
        assert http.get(f"/v1/requests/one/trace?follow={value}").status_code == 200


def test_what_may_be_streamed_says_so(server: RunningServer, http: httpx.Client) -> None:
    server.say("hello")
    for path, body in (("/invocations", chat()), (CHAT, chat()), (COMPLETIONS, completion())):
        answer = http.post(path, json=body | {"stream": True})
        described = DESCRIPTION["paths"][path]["post"]["responses"]["200"]["content"]
        assert answer.headers["content-type"].partition(";")[0] in described.keys() - {"application/json"}
