"""What is nested deeper than it could be written again is refused at the door, whichever field it is."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from service.api.calls.nesting import MOST_DEEP, check_nesting
from service.errors import InvalidRequest
from tests.api.running_server import MODEL
from tests.api.wire import CHAT, chat, error_of

RESPONSES = "/v1/responses"
ASKED = {"model": MODEL, "input": "hi", "max_output_tokens": 16}


def nested(depth: int) -> Any:
    """Lists and objects by turns; the innermost is empty."""
    value: Any = {}
    for number in range(depth - 1):
        value = [0, value] if number % 2 else {"a": value, "b": 0}
    return value


@pytest.mark.parametrize("body", [{"a": nested(MOST_DEEP), "b": 1}, {}, [nested(MOST_DEEP + 1)], "text"])
def test_as_deep_as_may_be_passes(body: object) -> None:
    check_nesting(body)


@pytest.mark.parametrize("depth", [MOST_DEEP + 1, 1000])
def test_deeper_is_refused_by_the_fields_name(depth: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"x+ may be nested at most {MOST_DEEP} levels deep") as refusal:
        check_nesting({"a": 1, "x" * 10_000: nested(depth)})
    assert refusal.value.param == "x" * 64


@pytest.mark.parametrize("num_padding_bytes", [0, 200_000], ids=["small", "large"])
@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        (CHAT, chat("hi", max_tokens=1, own=nested(400)), "own"),
        (RESPONSES, {**ASKED, "tools": [{"type": "function", "name": "f", "own": nested(400)}]}, "tools"),
        (RESPONSES, {**ASKED, "input": [{"role": "user", "content": "hi", "own": nested(400)}]}, "input"),
        (f"{RESPONSES}/compact", {**ASKED, "input": [{"role": "user", "content": "hi", "own": nested(400)}]}, "input"),
    ],
)
def test_no_route_fails_by_it(
    http: httpx.Client, route: str, body: dict[str, Any], param: str, num_padding_bytes: int
) -> None:
    text = json.dumps({"user": "x" * num_padding_bytes, **body})
    response = http.post(route, content=text, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["param"] == param
