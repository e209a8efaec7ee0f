from __future__ import annotations

import json
from dataclasses import replace

import httpx
import pytest
from anthropic.types.shared import ErrorResponse

from service import errors
from service.api.error_responses import error_response
from service.api.messages_errors import is_messages_route
from service.config import ApiConfig
from service.errors import RequestError
from tests.api.messages_wire import MESSAGES, error_of
from tests.api.running_server import MODEL, Scene, running
from tests.api.test_error_responses import family

SCOPE = {"type": "http", "path": MESSAGES, "state": {"request_id": "r"}}
NOT_IN_THE_CLIENTS_UNION = {"request_too_large"}
"""Anthropic's documentation has it for 413; its client reads it by the status."""


@pytest.mark.parametrize("kind", [kind for kind in family(RequestError) if kind.__module__ == errors.__name__])
def test_every_error_has_anthropics_shape(kind: type[RequestError]) -> None:
    body = json.loads(bytes(error_response(kind("what went wrong"), SCOPE).body))
    assert body["request_id"] == "r"
    assert body["error"]["message"].endswith("what went wrong")
    if body["error"]["type"] not in NOT_IN_THE_CLIENTS_UNION:
        ErrorResponse.model_validate(body)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.InvalidRequest("x"), 400, "invalid_request_error"),
        (errors.AuthenticationFailed("x"), 401, "authentication_error"),
        (errors.HostNotAllowed("x"), 403, "permission_error"),
        (errors.ModelNotFound("x"), 404, "not_found_error"),
        (errors.MethodNotAllowed("x"), 405, "invalid_request_error"),
        (errors.BodyTimeout("x"), 408, "invalid_request_error"),
        (errors.PayloadTooLarge("x"), 413, "request_too_large"),
        (errors.UnsupportedMediaType("x"), 415, "invalid_request_error"),
        (errors.RateLimited("x"), 429, "rate_limit_error"),
        (errors.ServerError("x"), 500, "api_error"),
        (errors.Unavailable("x"), 503, "api_error"),
        (errors.Overloaded("x"), 529, "overloaded_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, RequestError) else None,
)
def test_each_has_its_type(error: RequestError, status: int, kind: str) -> None:
    answer = error_response(error, SCOPE)
    assert (answer.status_code, json.loads(bytes(answer.body))["error"]["type"]) == (status, kind)


def test_who_is_to_come_back_is_told_when() -> None:
    for error in (errors.RateLimited("x"), errors.Unavailable("x"), errors.Overloaded("x")):
        assert int(error_response(error, SCOPE).headers["retry-after"]) > 0


def test_agents_read_that_a_prompt_is_too_long() -> None:
    answer = error_response(errors.ContextLengthExceeded("9 of 8 tokens"), SCOPE)
    assert json.loads(bytes(answer.body))["error"]["message"] == "prompt is too long: 9 of 8 tokens"


def test_which_routes_are_the_messages_apis() -> None:
    of_paths = {path: is_messages_route({"type": "http", "path": path}) for path in (MESSAGES, f"{MESSAGES}/x")}
    assert of_paths == {MESSAGES: True, f"{MESSAGES}/x": True}
    assert not is_messages_route({"type": "http", "path": "/v1/messages_of_others"})


def test_refusals_before_the_endpoint_have_it_too() -> None:
    config = replace(ApiConfig(served_model_names=(MODEL,)), api_keys=("k",), max_body_bytes=1000, allowed_hosts=("a",))
    key = {"x-api-key": "k"}
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        answers = [
            http.post(MESSAGES, json={}),
            http.post(MESSAGES, json={}, headers={**key, "Host": "b"}),
            http.post(f"{MESSAGES}/nothing", json={}, headers=key),
            http.post(MESSAGES, json={"x": "x" * 1000}, headers=key),
        ]
        assert [answer.status_code for answer in answers] == [401, 403, 404, 413]
        assert [error_of(answer)["type"] for answer in answers] == [
            "authentication_error",
            "permission_error",
            "not_found_error",
            "request_too_large",
        ]
