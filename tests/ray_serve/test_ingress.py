"""The ingress as an application of its own, before replicas that answer, are lost, or are lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from service.ray_serve.call import AnswerHead, Call
from service.ray_serve.ingress import OF_ONE_REPLICA, Ingress

JSON = (b"content-type", b"application/json")
EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")
LIMIT = 1000


class Lost(Exception):
    pass


class Answer:
    """What a replica says: head and pieces; an exception among them is raised in its turn."""

    def __init__(self, *parts: AnswerHead | bytes | Exception) -> None:
        self._parts = parts
        self.is_cancelled = False

    async def __aiter__(self) -> AsyncIterator[Any]:
        for part in self._parts:
            await asyncio.sleep(0)
            if isinstance(part, Exception):
                raise part
            yield part

    def cancel(self) -> None:
        self.is_cancelled = True


def answered(send: Callable[[Call], Answer], method: str = "POST", path: str = "/v1/completions", **request: Any):
    """The client's answer."""
    ingress = Ingress(send, (Lost,), LIMIT)

    async def app(scope: Scope, receive: Receive, send_back: Send) -> None:
        response = await ingress(Request(scope, receive))
        await response(scope, receive, send_back)

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            return await http.request(method, path, **request)

    return asyncio.run(call())


def of(*answers: Answer) -> tuple[Callable[[Call], Answer], list[Call]]:
    """Answers for one call after the other, and the calls."""
    calls: list[Call] = []
    left = list(answers)

    def send(call: Call) -> Answer:
        calls.append(call)
        return left.pop(0)

    return send, calls


def test_a_call_and_its_answer_pass_as_they_are():
    head = AnswerHead(418, (JSON, (b"x-twice", b"1"), (b"x-twice", b"2"), (b"x-request-id", b"r"), (b"date", b"d")))
    send, (calls) = of(answer := Answer(head, b'{"a"', b": 1}"))
    got = answered(send, path="/v1/models/a%20b?x=1&y=2", content=b"body", headers={"authorization": "Bearer k"})
    assert (got.status_code, got.content) == (418, b'{"a": 1}')
    assert got.headers.get_list("x-twice") == ["1", "2"]
    assert "x-request-id" not in got.headers and "date" not in got.headers, "Serve's proxy writes them"
    (call,) = calls
    assert (call.method, call.body, call.prompt) == ("POST", b"body", None)
    assert call.target.endswith("?x=1&y=2")
    assert (b"authorization", b"Bearer k") in call.headers
    assert answer.is_cancelled, "when it is over the replica need not wait for anybody"


def test_a_replica_that_is_lost_before_it_answers_is_replaced_by_another():
    send, calls = of(Answer(Lost("dead")), Answer(AnswerHead(200, (JSON,)), b"{}"))
    assert answered(send).status_code == 200
    assert len(calls) == 2 and calls[0] == calls[1]


@pytest.mark.parametrize(("path", "kind"), [("/v1/completions", "server_error"), ("/v1/messages", "api_error")])
def test_no_replica_at_all_is_503_in_the_routes_own_form(path: str, kind: str):
    send, calls = of(Answer(Lost()), Answer(Lost()))
    got = answered(send, path=path)
    assert (got.status_code, len(calls)) == (503, 2)
    assert got.json()["error"]["type"] == kind
    assert got.headers["retry-after"] == "1"


def test_a_stream_whose_replica_is_lost_ends_with_an_error_event():
    send, calls = of(Answer(AnswerHead(200, (EVENTS,)), b"data: {}\n\n", Lost("dead")))
    text = answered(send).text
    assert text.startswith('data: {}\n\ndata: {"error":{') and text.endswith("}\n\ndata: [DONE]\n\n")
    assert len(calls) == 1, "half of it is with the client"
    send, _ = of(Answer(AnswerHead(200, (EVENTS,)), b"event: message_start\ndata: {}\n\n", Lost("dead")))
    text = answered(send, path="/v1/messages").text
    assert "event: error\ndata: " in text and "[DONE]" not in text


def test_a_whole_answer_that_is_lost_on_its_way_is_cut():
    send, _ = of(Answer(AnswerHead(200, (JSON,)), b'{"choices":', Lost("dead")))
    with pytest.raises(Lost):  # the server under it closes the connection
        asyncio.run(_consumed(send))


async def _consumed(send: Callable[[Call], Answer]) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": []}
    response = await Ingress(send, (Lost,), LIMIT)(Request(scope, receive))
    async for _ in response.body_iterator:
        pass


def test_a_defect_of_a_replica_is_not_taken_for_its_loss():
    send, calls = of(answer := Answer(ValueError("a defect")))
    assert answered(send).status_code == 500
    assert len(calls) == 1 and answer.is_cancelled


@pytest.mark.parametrize("path", [f"{route}/x" for route in OF_ONE_REPLICA])
def test_what_one_replica_alone_knows_is_refused_by_name(path: str):
    got = answered(of()[0], "GET", path)
    assert got.status_code == 404
    assert path in got.json()["error"]["message"]


def test_a_body_that_is_too_long_reaches_nobody():
    assert answered(of()[0], content=b"x" * (LIMIT + 1)).status_code == 413
    send, calls = of(Answer(AnswerHead(200, ())))
    assert answered(send, content=b"x" * LIMIT).status_code == 200
    assert len(calls) == 1
