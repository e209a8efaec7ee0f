from __future__ import annotations

import re
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from service.api.app import create_app
from service.api.openapi import describe
from tests.api.running_server import RunningServer
from tests.api.wire import CHAT, COMPLETIONS, chat, completion

DESCRIPTION = describe()
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
    app = create_app(server.state, server.scene.config, server.recorder, server.registry)
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
        ("CompletionRequest", {"model", "prompt"}),
        ("ChatRequest", {"model", "messages"}),
        ("TokenizeRequest", {"prompt"}),
        ("DetokenizeRequest", {"tokens"}),
    ],
)
def test_says_what_is_required(name: str, required: set[str]) -> None:
    assert set(SCHEMAS[name]["required"]) == required
    assert SCHEMAS[name]["additionalProperties"] is True


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, completion()), (CHAT, chat("hi"))])
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
