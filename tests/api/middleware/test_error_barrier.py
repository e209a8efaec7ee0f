from __future__ import annotations

import asyncio
import gc
import logging
import time
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from service.api.middleware.body_budget import BodyBudget
from service.api.middleware.body_limits import BodyLimits
from service.api.middleware.error_barrier import ErrorBarrier
from service.api.middleware.http_facts import HttpFacts
from service.api.middleware.request_ids import RequestIds
from service.api.request_log import log_exchange
from service.errors import RequestError
from tests.api.running_server import RunningServer
from tests.api.wire import COMPLETIONS, completion, error_of


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
            Middleware(HttpFacts, recorder=server.recorder, routes={_fail: "/fail"}, watchers=[log_exchange]),
            Middleware(ErrorBarrier, recorder=server.recorder),
            Middleware(BodyLimits, max_bytes=10, timeout_s=1, budget=BodyBudget(10), on_end=print),
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


def test_an_allocation_that_fails_is_a_refusal(
    server: RunningServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*_: object, **__: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(server.tokenizer, "encode", short)
        for prompt in ("x", "x" * 10_000):  # here, and on a thread
            response = http.post(COMPLETIONS, json=completion(prompt=prompt))
            assert (response.status_code, error_of(response)["code"]) == (503, "overloaded")
            assert int(response.headers["retry-after"]) > 0
    assert http.post(COMPLETIONS, json=completion()).status_code == 200


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


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": 5},
        {"max_tokens": -1},
        {"model": "another"},
        {"prompt": [5] * 3000},
        {"prompt": "word " * 2000},
        {"regex": "a["},
        {"seed": 13},
    ],
    ids=["type", "range", "model", "long ids", "long text", "regex", "engine"],
)
def test_a_refused_or_failed_call_leaves_nothing_for_the_garbage_collector(
    server: RunningServer, http: httpx.Client, fields: dict[str, Any]
) -> None:
    """A fault knows the frames that it came through, and they must not know it: a body may have megabytes."""
    server.play(lambda prompt, so_far, seed: -1)  # every draw fails
    http.post(COMPLETIONS, json=completion())
    gc.collect()
    gc.disable()
    try:
        others = set(map(id, _faults()))
        for _ in range(3):
            assert http.post(COMPLETIONS, json=completion(**fields)).status_code >= 400
        deadline_s = time.monotonic() + 5
        while not others.issuperset(map(id, _faults())):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    finally:
        gc.enable()


def _faults() -> list[object]:
    return [it for it in gc.get_objects() if issubclass(type(it), RequestError | ValueError)]
