from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.api.running_server import MODEL, RunningServer
from tests.api.wire import error_of

RESPONSES = "/v1/responses"


def ask(http: httpx.Client, **fields: Any) -> httpx.Response:
    return http.post(RESPONSES, json={"model": MODEL, "input": "hi", **fields})


def test_answers(server: RunningServer, http: httpx.Client) -> None:
    ids = server.say("Good day, 你好")
    response = ask(http).json()
    assert response["id"].startswith("resp_")
    assert (response["object"], response["model"], response["status"]) == ("response", MODEL, "completed")
    (message,) = response["output"]
    assert message["id"].startswith("msg_")
    assert message["content"] == [{"type": "output_text", "text": "Good day, 你好", "annotations": [], "logprobs": []}]
    assert response["usage"]["output_tokens"] == len(ids)
    assert response["created_at"] <= response["completed_at"]


def test_its_trace_is_found_by_its_id(server: RunningServer, http: httpx.Client) -> None:
    server.say("Good")
    response = ask(http).json()
    assert http.get(f"/v1/requests/{response['id']}/trace").json()["outcome"] == "finished"
    named = ask(http, request_id="mine")
    assert named.headers["x-request-id"] == "mine"
    assert http.get("/v1/requests/mine/trace").json()["id"] == named.json()["id"]


def test_a_client_that_leaves_frees_what_it_held(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.002
    with http.stream("POST", RESPONSES, json={"model": MODEL, "input": "hi", "stream": True}) as response:
        next(response.iter_lines())
    server.executor.delay_s = 0.0
    server.check_idle()
    with pytest.raises(httpx.ReadTimeout):
        http.post(RESPONSES, json={"model": MODEL, "input": "hi"}, timeout=0.05)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"model": "m"'])
def test_bodies_that_are_none(http: httpx.Client, body: bytes) -> None:
    response = http.post(RESPONSES, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"
