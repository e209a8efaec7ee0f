from __future__ import annotations

import gc
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.http.protocol import BoundedProtocol
from tests.api.running_server import RunningServer, running
from tests.api.wire import completion
from tests.raw_connection import POST_HEAD, connect, read_to_end


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running() as server:
        yield server


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_http_1_0_gets_no_chunks(server: RunningServer, stream: bool) -> None:
    content = json.dumps(completion(stream=stream, max_tokens=3, ignore_eos=True)).encode()
    head = POST_HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Content-Length: %d\r\n\r\n" % len(content)
    with connect(server) as connection:
        connection.sendall(head + content)
        answer_head, _, body = read_to_end(connection).partition(b"\r\n\r\n")
    assert b"200 OK" in answer_head
    assert b"transfer-encoding" not in answer_head.lower()
    if stream:
        *events, done, rest = body.split(b"\n\n")
        assert all(json.loads(event.removeprefix(b"data: ")) for event in events)
        assert (done, rest) == (b"data: [DONE]", b"")
        assert events
    else:
        assert json.loads(body)["choices"]


@pytest.mark.parametrize("ending", ["whole", "streamed", "left", "HTTP/1.0", "refused"])
def test_a_connection_that_has_ended_leaves_nothing_for_the_garbage_collector(
    server: RunningServer, ending: str
) -> None:
    """A burst of short calls would leave thousands of them, and a collection of those stops all streams for long."""
    body = json.dumps(completion(stream=ending in ("streamed", "left"), max_tokens=200)).encode()
    version = b"1.0" if ending == "HTTP/1.0" else b"1.1"
    head = POST_HEAD.replace(b"HTTP/1.1", b"HTTP/" + version) + b"Content-Length: %d\r\n\r\n" % len(body)
    with _uncollected():
        others = _connections()  # which tests before have left, and something may still hold
        for _ in range(3):
            with connect(server) as connection:
                connection.sendall(b"nonsense\r\n\r\n" if ending == "refused" else head + body)
                connection.recv(10)
                if ending != "left":
                    connection.shutdown(socket.SHUT_WR)
                    read_to_end(connection)
        assert _wait_until_none_is_left_but(others)


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile, and there is none yet."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _connections() -> list[object]:
    """And calls on them."""
    return [it for it in gc.get_objects() if type(it) in (BoundedProtocol, RequestResponseCycle)]


def _wait_until_none_is_left_but(others: list[object]) -> bool:
    """Whether none is after some seconds at most."""
    known, deadline_s = set(map(id, others)), time.monotonic() + 6
    while not known.issuperset(map(id, _connections())):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True
