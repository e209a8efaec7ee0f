import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from loadtest.http_client import HttpClient
from loadtest.prompts import BodyOptions, request_body
from loadtest.stream_record import StreamRecord
from loadtest.stub_server import FAULT_AFTER_CHUNKS
from loadtest.trace import TraceRequest

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def _send(base_url: str, model: str = "stub", times: int = 1, timeout_s: float = 5.0) -> list[StreamRecord]:
    async def run() -> list[StreamRecord]:
        client = HttpClient(base_url)
        body = request_body(TraceRequest(0, prompt_len=4, output_len=6), BodyOptions(model))
        records = []
        for i in range(times):
            records.append(StreamRecord(i, time.perf_counter()))
            await client.stream("/v1/completions", body, records[-1], timeout_s)
        client.close()
        return records

    return asyncio.run(run())


@contextlib.contextmanager
def _raw_server(*answers: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accepts one connection for each answer, reads a request on it, lets the answer speak, closes it."""

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                answer(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def test_a_stream_is_recorded(fast_stub_url: str) -> None:
    (record,) = _send(fast_stub_url)
    assert record.succeeded
    assert (record.input_tokens, record.output_tokens, len(record.chunk_times)) == (4, 6, 6)
    assert record.scheduled_s < record.sent_s < record.chunk_times[0] <= record.end_s
    assert record.finish_reason == "length"


def test_connections_are_kept_and_reused(fast_stub_url: str) -> None:
    assert all(record.succeeded for record in _send(fast_stub_url, times=5))


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("stub-503", "http_503"),
        ("stub-disconnect", "disconnected_mid_stream"),
        ("stub-error", "stream_error"),
        ("stub-hang", "timeout"),
    ],
)
def test_faults_are_named(fast_stub_url: str, model: str, kind: str) -> None:
    (record,) = _send(fast_stub_url, model, timeout_s=0.5)
    assert record.error_kind == kind
    assert record.end_s > record.scheduled_s


def test_chunks_before_a_fault_are_kept(fast_stub_url: str) -> None:
    (record,) = _send(fast_stub_url, "stub-disconnect")
    assert len(record.chunk_times) == FAULT_AFTER_CHUNKS
    assert f"after {FAULT_AFTER_CHUNKS} chunks" in record.error


def test_the_body_of_a_refusal_is_in_the_error(fast_stub_url: str) -> None:
    (record,) = _send(fast_stub_url, "stub-503")
    assert "queue_full" in record.error


def test_refused_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    (record,) = _send(f"http://127.0.0.1:{port}")
    assert record.error_kind == "connect_failed"


def test_a_stream_to_the_end_of_the_connection() -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(STREAM_HEAD + b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n')

    with _raw_server(answer) as url:
        (record,) = _send(url)
    assert record.succeeded
    assert record.output_tokens == 1


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (b"", "disconnected_before_answer"),
        (STREAM_HEAD + b'data: {"choices": [{"text": "a"}]}\n\n', "unfinished_stream"),
        (STREAM_HEAD + b"data: {broken\n\n", "bad_response"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", "bad_response"),
        (b"220 mail\r\n\r\n", "bad_response"),
    ],
)
def test_bad_answers_are_named(said: bytes, kind: str) -> None:
    with _raw_server(lambda connection: connection.sendall(said)) as url:
        (record,) = _send(url)
    assert record.error_kind == kind


def test_a_kept_connection_that_the_server_has_closed_is_replaced() -> None:
    def keep(connection: socket.socket) -> None:
        event = b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\n'
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(event)
        connection.sendall(head + event)

    with _raw_server(keep, keep, keep) as url:
        assert all(record.succeeded for record in _send(url, times=3))


def test_only_http_urls() -> None:
    with pytest.raises(ValueError, match="base URL"):
        HttpClient("127.0.0.1:8000")
