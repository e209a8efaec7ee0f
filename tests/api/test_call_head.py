from __future__ import annotations

import logging
import time
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from service.api.call_head import call_head
from service.api.random_ids import RandomIds
from service.api.request_log import log_exchange
from tests.api.running_server import Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of


def test_every_call_has_an_id_of_its_own() -> None:
    state = {"request_id": "twice", "request_id_is_given": True}
    ids, http = RandomIds(), Request({"type": "http", "headers": [], "state": state})
    first, second = call_head(ids, http, "cmpl-", 1.5), call_head(ids, http, "cmpl-", 1.5)
    assert first.call_id.startswith("cmpl-")
    assert first.call_id != second.call_id
    assert (first.arrival_s, first.client) == (1.5, "")
    assert abs(first.created - time.time()) < 5


@pytest.mark.parametrize("path_and_body", [(COMPLETIONS, completion()), (CHAT, chat("hi"))])
@pytest.mark.parametrize("given", ["header", "body", "both", "nothing"])
def test_answer_header_log_and_trace_speak_of_one_request(
    path_and_body: tuple[str, dict[str, Any]], given: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, body = path_and_body
    headers = {"X-Request-Id": "mine"} if given in ("header", "both") else {}
    body = {**body, "request_id": "bodys" if given == "both" else "mine"} if given in ("body", "both") else body
    caplog.set_level(logging.INFO, "headrace.access")
    with running(Scene(watchers=[log_exchange])) as server, httpx.Client(base_url=server.base_url) as http:
        answer = http.post(path, json=body, headers=headers)
        call_id, request_id = answer.json()["id"], answer.headers["x-request-id"]
        if given == "nothing":
            assert call_id.partition("-")[2] == request_id
        else:
            assert request_id == "mine"
        for either in (call_id, request_id):
            trace = http.get(f"/v1/requests/{either}/trace").json()
            assert (trace["id"], trace["request_id"]) == (call_id, request_id)
    (line,) = [line for line in caplog.messages if f" {path} " in line]  # written behind the answer
    assert {request_id, call_id} <= set(line.split())


@pytest.mark.parametrize("own_id", ["", "x" * 65, "a b", "<script>", "é", 5])
def test_an_own_id_that_cannot_be_repeated_is_refused(http: httpx.Client, own_id: object) -> None:
    for path, body in ((COMPLETIONS, completion()), (CHAT, chat("hi"))):
        assert error_of(http.post(path, json={**body, "request_id": own_id}))["param"] == "request_id"
