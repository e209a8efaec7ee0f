from __future__ import annotations

import json

import pytest
from starlette.exceptions import HTTPException

from service import errors
from service.api.error_responses import error_body, error_response, from_starlette, internal_error
from service.errors import RequestError

SCOPE = {"type": "http", "path": "/v1/completions", "state": {"request_id": "r"}}


def family(root: type[RequestError]) -> list[type[RequestError]]:
    return [root, *(member for child in root.__subclasses__() for member in family(child))]


@pytest.mark.parametrize("kind", [kind for kind in family(RequestError) if kind.__module__ == errors.__name__])
def test_every_error_has_openais_shape(kind: type[RequestError]) -> None:
    response = error_response(kind("what went wrong"), SCOPE)
    assert response.status_code == kind.status
    assert json.loads(bytes(response.body)) == {
        "error": {"message": "what went wrong", "type": kind.error_type, "param": None, "code": kind.code}
    }
    assert response.headers["content-type"] == "application/json"


def test_the_field_is_named() -> None:
    error = json.loads(error_body(errors.InvalidRequest("bad", param="n", code="x")))["error"]
    assert (error["param"], error["code"]) == ("n", "x")


@pytest.mark.parametrize(("wait_s", "header"), [(0.0, "1"), (0.2, "1"), (1.2, "2"), (30.0, "30")])
def test_retry_after_is_whole_seconds(wait_s: float, header: str) -> None:
    assert error_response(errors.Overloaded("full", retry_after_s=wait_s), SCOPE).headers["retry-after"] == header


def test_who_has_reached_its_limit_is_told_when_to_come_back() -> None:
    answer = error_response(errors.RateLimited("too many"), SCOPE)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


def test_answers_before_the_end_of_the_body_close_the_connection() -> None:
    assert error_response(errors.PayloadTooLarge("big"), SCOPE).headers["connection"] == "close"
    assert "connection" not in error_response(errors.InvalidRequest("bad"), SCOPE).headers


@pytest.mark.parametrize(("status", "becomes"), [(404, 404), (405, 405), (418, 500)])
def test_starlettes_own_refusals(status: int, becomes: int) -> None:
    assert from_starlette(HTTPException(status, "detail with a secret")).status == becomes
    assert "secret" not in from_starlette(HTTPException(status, "detail with a secret")).message


def test_an_unforeseen_error_says_nothing() -> None:
    assert internal_error().status == 500
