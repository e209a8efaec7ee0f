from __future__ import annotations

import socket
from dataclasses import replace

import httpx
import pytest

from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of


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
        answer = b""
        while piece := connection.recv(4096):  # until the server closes
            answer += piece
        assert b" 408 " in answer.splitlines()[0]
        assert b"body_timeout" in answer


def test_waiting_for_an_answer_is_not_waiting_for_the_body(small: RunningServer) -> None:
    small.say("slow")
    small.executor.delay_s = 0.1
    with httpx.Client(base_url=small.base_url) as http:
        assert http.post(COMPLETIONS, json=completion()).json()["choices"][0]["text"] == "slow"
