"""Whoever leaves is aborted within an iteration, streaming or not, queued or running."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import httpx
import pytest
from starlette.types import Message

from service.api.disconnect import ClientGone, run_unless_disconnected
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion


def send_raw(
    server: RunningServer, route: str, body: dict[str, Any], receive_bytes: int | None = None
) -> socket.socket:
    """A connection on which the request has been sent and nothing read."""
    content = json.dumps(body).encode()
    head = (
        f"POST {route} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.connect(("127.0.0.1", int(server.base_url.rpartition(":")[2])))
    connection.sendall(head.encode() + content)
    return connection


def wait_until_running(server: RunningServer) -> None:
    deadline_s = time.monotonic() + 5
    while server.executor.num_iterations < 3:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("route", "body"), [(COMPLETIONS, completion(prompt=["a", "b"], n=2)), (CHAT, chat("hi"))])
def test_a_running_request_is_aborted(server: RunningServer, route: str, body: dict[str, Any], stream: bool) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.005
    aborts = server.metric("headrace_aborts_total", reason="client_disconnected")
    connection = send_raw(server, route, {**body, "max_tokens": 2000, "stream": stream})
    wait_until_running(server)
    connection.close()
    server.check_idle()
    assert server.executor.num_iterations < 100
    assert server.metric("headrace_aborts_total", reason="client_disconnected") == aborts + 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_behind", [1, 3, 8])
def test_a_request_with_others_behind_it_is_aborted(server: RunningServer, stream: bool, num_behind: int) -> None:
    """Sent on one connection before the first was answered."""
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.005
    connection = send_raw(server, COMPLETIONS, completion(max_tokens=2000, stream=stream))
    wait_until_running(server)
    connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * num_behind)
    time.sleep(0.02)
    connection.close()
    server.check_idle()
    assert server.executor.num_iterations < 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_queued_request_is_aborted(stream: bool) -> None:
    scheduler = Scene().scheduler.__class__(1, 512, 0.0, 64, 100_000)
    with running(Scene(scheduler=scheduler)) as server:
        server.play(lambda prompt, so_far, seed: 75)
        server.executor.delay_s = 0.005
        first = send_raw(server, COMPLETIONS, completion(max_tokens=2000))
        wait_until_running(server)
        second = send_raw(server, COMPLETIONS, completion(max_tokens=2000, stream=stream))
        while server.engine.snapshot.num_waiting == 0:
            time.sleep(0.001)
        second.close()
        while server.engine.snapshot.num_waiting:
            time.sleep(0.001)
        assert server.engine.snapshot.num_running == 1
        first.close()


@pytest.mark.parametrize(
    ("route", "body"), [(COMPLETIONS, completion(prompt="x" * 5000)), (CHAT, chat("x" * 5000))], ids=["text", "chat"]
)
def test_a_client_that_leaves_while_its_prompt_is_read_is_499(
    server: RunningServer, route: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    for name in ("encode", "encode_rendered"):
        monkeypatch.setattr(server.tokenizer, name, lambda *args, **kwargs: gate.wait(5) and [5])
    labels = {"route": route, "method": "POST", "status": "499"}
    before = server.metric("headrace_http_requests_total", **labels)
    connections = [send_raw(server, route, body) for _ in range(10)]
    time.sleep(0.1)
    for connection in connections:
        connection.close()
    deadline_s = time.monotonic() + 2
    while server.metric("headrace_http_requests_total", **labels) < before + 10:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    gate.set()
    server.check_idle()


def test_a_storm_of_leaving_clients_leaves_nothing(server: RunningServer) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.001
    for _ in range(3):
        bodies = [completion(max_tokens=2000, stream=bool(index % 2)) for index in range(30)]
        connections = [send_raw(server, COMPLETIONS, body) for body in bodies]
        wait_until_running(server)
        for connection in connections:
            connection.close()
    server.check_idle()
    assert server.on_loop(server.state.ailment) is None


def test_half_an_answer_read_then_gone(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: 75)
    server.executor.delay_s = 0.002
    with http.stream("POST", COMPLETIONS, json=completion(max_tokens=2000, stream=True)) as response:
        for _, _line in zip(range(5), response.iter_lines(), strict=False):
            pass
    server.check_idle()


def test_nothing_is_generated_for_a_client_that_left_before_it_began(server: RunningServer) -> None:
    server.executor.gate.clear()
    connection = send_raw(server, COMPLETIONS, completion(max_tokens=2000, stream=True))
    connection.close()
    server.executor.gate.set()
    server.check_idle()


def test_gone_before_the_body_was_complete(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    before = server.metric("headrace_http_requests_total", route=COMPLETIONS, method="POST", status="499")
    connection = socket.create_connection(("127.0.0.1", int(server.base_url.rpartition(":")[2])))
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n"
    connection.sendall(head + b"\r\n{")
    time.sleep(0.05)
    connection.close()
    deadline_s = time.monotonic() + 2
    while server.metric("headrace_http_requests_total", route=COMPLETIONS, method="POST", status="499") == before:
        assert time.monotonic() < deadline_s
        time.sleep(0.005)
    assert not caplog.records


def test_a_client_that_does_not_read_is_cut() -> None:
    config = replace(Scene().config, stream_send_timeout_s=0.2)
    with running(Scene(config=config, max_model_len=60_000, num_blocks=60_000)) as server:
        server.play(lambda prompt, so_far, seed: 75)
        connection = send_raw(server, COMPLETIONS, completion(max_tokens=50_000, stream=True, n=4), receive_bytes=4096)
        deadline_s = time.monotonic() + 20
        while server.metric("headrace_aborts_total", reason="send_timeout") == 0:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        server.check_idle()
        with httpx.Client(base_url=server.base_url) as http:
            assert http.get("/health").status_code == 200
        connection.close()


def test_clients_that_do_not_read_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    config = replace(Scene().config, stream_send_timeout_s=0.2)
    with running(Scene(config=config, max_model_len=60_000, num_blocks=60_000)) as server:
        server.play(lambda prompt, so_far, seed: 75)
        body = completion(max_tokens=50_000, stream=True, n=4)
        connections = [send_raw(server, COMPLETIONS, body, receive_bytes=4096) for _ in range(3)]
        deadline_s = time.monotonic() + 20
        while server.metric("headrace_aborts_total", reason="send_timeout") < 3:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        server.check_idle()
        for connection in connections:
            connection.close()
    told = [record.getMessage() for record in caplog.records]
    assert told == ["streams whose client read nothing for 0.2 s were cut: 1"]


async def _receive_nothing() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def _receive_disconnect() -> Message:
    return {"type": "http.disconnect"}


async def _answer() -> str:
    await asyncio.sleep(0.01)
    return "done"


def test_the_race() -> None:
    assert asyncio.run(run_unless_disconnected(_receive_nothing, _answer())) == "done"
    with pytest.raises(ClientGone):
        asyncio.run(run_unless_disconnected(_receive_disconnect, _answer()))


def test_a_failure_of_the_work_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        asyncio.run(run_unless_disconnected(_receive_nothing, fail()))
