from __future__ import annotations

import asyncio
import logging
import socket
import time
from dataclasses import replace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from service.api.middleware import BodyLimits, ErrorBarrier, HttpFacts, RequestIds
from service.config import ApiConfig
from tests.api.running_server import MODEL, RunningServer, Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of

KEYS = ("sk-one", "sk-two")


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


@pytest.fixture(scope="module")
def guarded() -> object:
    config = ApiConfig(served_model_names=(MODEL,), api_keys=KEYS)
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        yield http


@pytest.mark.parametrize("header", [f"Bearer {KEYS[0]}", f"Bearer {KEYS[1]}", f"bearer {KEYS[0]}"])
def test_a_right_key_opens(guarded: httpx.Client, header: str) -> None:
    assert guarded.post(COMPLETIONS, json=completion(), headers={"Authorization": header}).status_code == 200


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer sk-on", "Bearer sk-one2", "Basic sk-one", "sk-one"])
@pytest.mark.parametrize("path", ["/v1/models", "/version", "/nope", "//v1/models", "/health/../v1"])
def test_a_wrong_key_does_not(guarded: httpx.Client, path: str, header: str) -> None:
    response = guarded.get(path, headers={"Authorization": header} if header else {})
    assert response.status_code == 401
    assert error_of(response)["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/"])
def test_these_need_no_key(guarded: httpx.Client, path: str) -> None:
    assert guarded.get(path).status_code == 200


def test_the_key_is_checked_before_the_body_is_read(guarded: httpx.Client) -> None:
    assert guarded.post(COMPLETIONS, content=b"{").status_code == 401


@pytest.fixture(scope="module")
def small() -> object:
    config = replace(Scene().config, max_body_bytes=1000, body_timeout_s=0.2)
    with running(Scene(config=config)) as server:
        yield server


def test_a_body_over_the_limit(small: RunningServer) -> None:
    with httpx.Client(base_url=small.base_url) as http:
        response = http.post(COMPLETIONS, json=completion(prompt="x" * 1000))
        assert response.status_code == 413
        assert "1000 bytes" in error_of(response)["message"]
        assert http.post(COMPLETIONS, json=completion(prompt="x" * 900)).status_code == 200


def test_a_body_over_the_limit_that_does_not_say_its_length(small: RunningServer) -> None:
    with httpx.Client(base_url=small.base_url) as http:
        pieces = (b"x" * 100 for _ in range(100))
        response = http.post(COMPLETIONS, content=pieces, headers={"content-type": "application/json"})
        assert response.status_code == 413


def test_a_body_that_does_not_arrive(small: RunningServer) -> None:
    port = int(small.base_url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n"
        connection.sendall(head + b"\r\n{")
        connection.settimeout(5)
        started_s = time.monotonic()
        answer = b""
        while piece := connection.recv(4096):  # until the server closes
            answer += piece
        assert time.monotonic() - started_s < 2
        assert b" 408 " in answer.splitlines()[0]
        assert b"body_timeout" in answer


def test_waiting_for_an_answer_is_not_waiting_for_the_body(small: RunningServer) -> None:
    small.say("slow")
    small.executor.delay_s = 0.1
    with httpx.Client(base_url=small.base_url) as http:
        assert http.post(COMPLETIONS, json=completion()).json()["choices"][0]["text"] == "slow"


def test_counts_by_route_template(server: RunningServer, http: httpx.Client) -> None:
    def count(route: str, status: str, method: str = "GET") -> float:
        return server.metric("headrace_http_requests_total", route=route, method=method, status=status)

    before = count("/v1/models/{model_id:path}", "200"), count("unknown", "404"), count(COMPLETIONS, "400", "POST")
    http.get(f"/v1/models/{MODEL}")
    http.get("/secret/" + "x" * 100)
    http.post(COMPLETIONS, json=completion(n=0))
    http.request("PROPFIND", "/health")
    after = count("/v1/models/{model_id:path}", "200"), count("unknown", "404"), count(COMPLETIONS, "400", "POST")
    assert after == tuple(value + 1 for value in before)
    assert count("/health", "405", "other") == 1
    assert "secret" not in http.get("/metrics").text


def test_counts_rejections(server: RunningServer, http: httpx.Client) -> None:
    before = server.metric("headrace_rejections_total", reason="unsupported_parameter")
    http.post(COMPLETIONS, json=completion(suffix="x"))
    assert server.metric("headrace_rejections_total", reason="unsupported_parameter") == before + 1


async def _fail(http: Request) -> Response:
    raise RuntimeError("secret: /etc/passwd")


def test_a_surprise_is_a_500_that_says_nothing(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    app = Starlette(
        routes=[Route("/fail", _fail)],
        middleware=[
            Middleware(RequestIds),
            Middleware(HttpFacts, recorder=server.recorder, routes={_fail: "/fail"}, access_log=True),
            Middleware(ErrorBarrier, recorder=server.recorder),
            Middleware(BodyLimits, max_bytes=10, timeout_s=1),
        ],
    )

    async def get(path: str) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
            return await client.get(path, headers={"x-request-id": "find-me"})

    caplog.set_level(logging.INFO, "headrace.access")
    response = asyncio.run(get("/fail"))
    assert response.status_code == 500
    assert error_of(response)["type"] == "server_error"
    assert "secret" not in response.text
    assert "find-me" in caplog.text and "secret" in caplog.text
    assert "GET /fail 500" in caplog.text


def test_a_surprise_after_the_answer_began_adds_nothing_to_it(server: RunningServer) -> None:
    async def fail_late(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("late")

    sent: list[Message] = []

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "state": {"request_id": "x"}}
    asyncio.run(ErrorBarrier(fail_late, server.recorder)(scope, receive, send))
    assert [message["type"] for message in sent] == ["http.response.start"]


def test_metrics_can_be_guarded_and_keys_have_names() -> None:
    config = replace(Scene().config, api_keys=("ann:sk-a", "ann:sk-b", "bob:sk-c"), guard_metrics=True)
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        assert http.get("/metrics").status_code == 401
        assert http.get("/metrics", headers={"Authorization": "Bearer ann:sk-a"}).status_code == 401
        assert http.get("/metrics", headers={"Authorization": "Bearer sk-b"}).status_code == 200

        def trace(key: str, call_id: str) -> int:
            return http.get(f"/v1/requests/{call_id}/trace", headers={"Authorization": f"Bearer {key}"}).status_code

        made = http.post(COMPLETIONS, json=completion(), headers={"Authorization": "Bearer sk-a"}).json()["id"]
        assert [trace(key, made) for key in ("sk-a", "sk-b", "sk-c")] == [200, 200, 404]
