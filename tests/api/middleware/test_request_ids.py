from __future__ import annotations

import httpx
import pytest

from tests.api.running_server import RunningServer
from tests.api.wire import COMPLETIONS, completion


@pytest.mark.parametrize("given", ["abc-1_2.3", "x" * 64])
def test_a_request_id_that_is_fit_comes_back(http: httpx.Client, given: str) -> None:
    assert http.get("/health", headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "a\tb", "<script>", "é"])
def test_a_request_id_that_is_not_is_replaced(http: httpx.Client, given: str) -> None:
    returned = http.get("/health", headers={"X-Request-Id": given.encode()}).headers["x-request-id"]
    assert returned != given
    assert len(returned) == 32


def test_every_answer_has_a_request_id(http: httpx.Client) -> None:
    answers = [
        http.get("/nope"),
        http.get(COMPLETIONS),
        http.post(COMPLETIONS, content=b"{"),
        http.post(COMPLETIONS, json=completion(stream=True)),
    ]
    assert len({answer.headers["x-request-id"] for answer in answers}) == len(answers)


def test_the_same_request_id_twice_is_two_requests(server: RunningServer, http: httpx.Client) -> None:
    ids = {http.post(COMPLETIONS, json=completion(), headers={"X-Request-Id": "same"}).json()["id"] for _ in range(3)}
    assert len(ids) == 3


def test_anthropics_clients_find_it_under_their_own_name(http: httpx.Client) -> None:
    headers = http.post("/v1/messages", content=b"{", headers={"X-Request-Id": "mine"}).headers
    assert (headers["request-id"], headers["x-request-id"]) == ("mine", "mine")
    assert "request-id" not in http.get("/health").headers
