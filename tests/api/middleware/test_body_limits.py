from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import httpx
import pytest

from service.api.freed_memory import FreedMemory
from service.api.middleware.body_budget import BodyBudget
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of
from tests.raw_connection import POST_HEAD, connect


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


LARGE, TOTAL = 1_000_000, 4_000_000


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> list[BodyBudget]:
    """Those that the servers of this test make."""
    made: list[BodyBudget] = []
    make = BodyBudget.__init__

    def noted(budget: BodyBudget, most_bytes: int) -> None:
        made.append(budget)
        make(budget, most_bytes)

    monkeypatch.setattr(BodyBudget, "__init__", noted)
    return made


@pytest.fixture
def narrow(budget: list[BodyBudget]) -> Iterator[RunningServer]:
    """Four of the largest bodies are all that it holds at once."""
    with running(Scene(config=replace(Scene().config, max_body_bytes=LARGE, max_total_body_bytes=TOTAL))) as server:
        yield server
        server.check_idle()
        assert server.on_loop(lambda: budget[-1].num_bytes) == 0


@contextlib.contextmanager
def stalled(server: RunningServer, number: int, *, sent: int, declared: int = LARGE) -> Iterator[list[socket.socket]]:
    """So many bodies that are not sent to their end."""
    with contextlib.ExitStack() as open_connections:
        connections = [open_connections.enter_context(connect(server)) for _ in range(number)]
        for connection in connections:
            connection.sendall(POST_HEAD + b"Content-Length: %d\r\n\r\n" % declared)
            with contextlib.suppress(ConnectionError):
                connection.sendall(b" " * sent)
        yield connections


def wait_until_held(server: RunningServer, budget: list[BodyBudget], least: int) -> None:
    deadline_s = time.monotonic() + 10
    while server.on_loop(lambda: budget[-1].num_bytes) < least and time.monotonic() < deadline_s:
        time.sleep(0.005)


def test_bodies_that_stall_hold_no_more_than_the_budget(narrow: RunningServer, budget: list[BodyBudget]) -> None:
    with stalled(narrow, 20, sent=LARGE - 1) as connections:
        wait_until_held(narrow, budget, 3 * LARGE)
        for _ in range(20):
            assert narrow.on_loop(lambda: budget[-1].num_bytes) <= TOTAL
            time.sleep(0.005)
        refused = [answer for answer in map(answer_so_far, connections) if answer]
        assert len(refused) >= 16
        assert all(b" 503 " in answer.splitlines()[0] and b"retry-after: 1" in answer.lower() for answer in refused)


def answer_so_far(connection: socket.socket) -> bytes:
    connection.settimeout(0.2)
    with contextlib.suppress(TimeoutError):
        return connection.recv(65536)
    return b""


def test_small_bodies_get_through_beside_large_ones_that_stall(narrow: RunningServer, budget: list[BodyBudget]) -> None:
    with stalled(narrow, 4, sent=LARGE - 1):
        wait_until_held(narrow, budget, TOTAL - 4)
        for _ in range(3):
            assert httpx.post(narrow.base_url + COMPLETIONS, json=completion()).status_code == 200


def test_who_only_declares_a_length_takes_nothing_from_anybody(narrow: RunningServer) -> None:
    with stalled(narrow, 50, sent=0):
        body = completion(prompt="x" * 1000, pad="x" * (LARGE - 2000))
        assert httpx.post(narrow.base_url + COMPLETIONS, json=body).status_code == 200


def test_a_declared_length_for_which_there_is_no_room_is_refused_before_it_is_read(
    narrow: RunningServer, budget: list[BodyBudget]
) -> None:
    with stalled(narrow, 4, sent=LARGE - 1):
        wait_until_held(narrow, budget, TOTAL - 4)
        with connect(narrow) as late:
            late.sendall(POST_HEAD + b"Content-Length: %d\r\n\r\n" % LARGE)
            late.settimeout(2)
            answer = b""
            with contextlib.suppress(TimeoutError):
                while b"overloaded" not in answer:
                    answer += late.recv(65536)
        assert b" 503 " in answer.splitlines()[0]
        assert b"overloaded" in answer


def test_a_body_that_is_parsed_is_held_no_more(narrow: RunningServer, budget: list[BodyBudget]) -> None:
    narrow.executor.gate.clear()
    body = completion(stream=True, pad="x" * 500_000)
    with httpx.stream("POST", narrow.base_url + COMPLETIONS, json=body):
        assert narrow.on_loop(lambda: budget[-1].num_bytes) == 0
        narrow.executor.gate.set()


def test_memory_is_given_back_of_bodies_that_were_not_read_to_their_end(
    narrow: RunningServer, budget: list[BodyBudget], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back = threading.Event()
    monkeypatch.setattr(FreedMemory, "trim_soon", lambda _: given_back.set())
    with stalled(narrow, 1, sent=LARGE - 1):
        wait_until_held(narrow, budget, LARGE - 1)
        assert not given_back.is_set()
    assert given_back.wait(10)
