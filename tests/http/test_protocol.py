from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.api.answers.sse import TokenStreamResponse
from service.config import ConnectionLimits
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import COMPLETIONS, completion, error_of
from tests.raw_connection import POST_HEAD, connect, read_to_end

LIMITS = ConnectionLimits(
    max_connections=8,
    max_header_bytes=4000,
    max_headers=20,
    header_timeout_s=0.3,
    body_timeout_s=0.3,
    idle_timeout_s=0.3,
    send_timeout_s=0.3,
)


@pytest.fixture(scope="module")
def bounded() -> Iterator[RunningServer]:
    with running(Scene(limits=LIMITS)) as server:
        yield server


def status_and_error(answer: bytes) -> tuple[int, dict[str, object]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head.lower()
    assert b"connection: close" in head.lower()
    return int(head.split()[1]), json.loads(body)["error"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"".join(b"h%d: 1\r\n" % i for i in range(20)) + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nBig: " + b"x" * 5000 + b"\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nBig: " + b"x" * 300_000,
        b"GET /" + b"x" * 5000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["many", "big", "endless", "path"],
)
def test_headers_over_the_limits_are_431(bounded: RunningServer, head: bytes) -> None:
    with connect(bounded) as connection:
        connection.sendall(head)
        status, error = status_and_error(read_to_end(connection))
    assert status == 431
    assert error["type"] == "invalid_request_error"
    assert "at most" in str(error["message"])


@pytest.mark.parametrize("more", [b"Connection: close\r\n", b""], ids=["413 then close", "413"])
def test_an_early_answer_reaches_a_client_that_still_sends(bounded: RunningServer, more: bytes) -> None:
    """Closing on unread bytes would reset the connection, and the answer with it."""
    with connect(bounded) as connection:
        connection.sendall(POST_HEAD + more + b"Content-Length: 20000000\r\n\r\n")
        for _ in range(20):
            connection.sendall(b"x" * 100_000)
            time.sleep(0.002)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b'"error"' in answer


def test_headers_without_end_are_answered_while_they_come(bounded: RunningServer) -> None:
    with connect(bounded) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        for _ in range(20):
            connection.sendall(b"Big: " + b"x" * 100_000 + b"\r\n")
            time.sleep(0.002)
        assert connection.recv(65536).startswith(b"HTTP/1.1 431 ")


def test_nobody_lingers_for_ever(bounded: RunningServer) -> None:
    with connect(bounded) as connection:
        connection.sendall(POST_HEAD + b"Connection: close\r\nContent-Length: 20000000\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 413 ")
        deadline_s = time.monotonic() + 6
        while bounded.num_connections() and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert bounded.num_connections() == 0


def test_headers_within_the_limits_pass(bounded: RunningServer) -> None:
    headers = {f"h{index}": "x" * 200 for index in range(12)}
    assert httpx.get(f"{bounded.base_url}/health", headers=headers).status_code == 200


def test_a_big_body_does_not_count_as_headers(bounded: RunningServer) -> None:
    body = completion(prompt="x" * 1500, max_tokens=1)
    for _ in range(2):
        assert httpx.post(f"{bounded.base_url}{COMPLETIONS}", json=body).status_code == 200
    many = httpx.post(f"{bounded.base_url}{COMPLETIONS}", json=completion(prompt="x " * 100_000))
    assert error_of(many)["code"] == "context_length_exceeded"


def test_endless_trailers_are_cut(bounded: RunningServer) -> None:
    with connect(bounded) as connection:
        connection.sendall(POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n")
        try:
            for _ in range(100):
                connection.sendall(b"trailer: " + b"x" * 5000 + b"\r\n")
        except OSError:
            pass
        assert b"200" not in read_to_end(connection)[:20]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        b"CONNECT example.org:80 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["nonsense", "path", "space", "two-lengths", "smuggling", "connect"],
)
def test_what_is_not_http_is_400_in_our_shape(bounded: RunningServer, request_bytes: bytes) -> None:
    with connect(bounded) as connection:
        connection.sendall(request_bytes)
        status, error = status_and_error(read_to_end(connection))
    assert status == 400
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nHost: x\r\n",
        b"GET /health HTTP/1.0\r\nHost: x\r\nHost: x\r\n",
        b"GET /health HTTP/1.1\r\nHost: x y\r\n",
        b"GET /health HTTP/1.1\r\nHost: http://x/\r\n",
        b"GET /health HTTP/1.1\r\nHost: user@x\r\n",
        b"GET /health HTTP/0.9\r\nHost: x\r\n",
        b"GET /health HTTP/2.0\r\nHost: x\r\n",
        b"GET /health\r\n",
    ],
    ids=["none", "two", "two-1.0", "space", "url", "user", "0.9", "2.0", "0.9-without-version"],
)
def test_a_request_of_one_host_in_a_version_that_is_spoken(bounded: RunningServer, head: bytes) -> None:
    with connect(bounded) as connection:
        connection.sendall(head + b"\r\n")
        status, error = status_and_error(read_to_end(connection))
    assert status == 400
    assert error["type"] == "invalid_request_error"


def test_http_1_0_needs_no_host(bounded: RunningServer) -> None:
    with connect(bounded) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("pieces", [1, 2, 30])
@pytest.mark.parametrize(
    "before", [b"", b"5\r\nabcde\r\n", b"0005;a=1\r\n\r\n9\r\n\r\n"], ids=["first", "later", "odd"]
)
def test_a_chunk_beyond_the_limit_is_refused_before_it_comes(
    bounded: RunningServer, before: bytes, pieces: int
) -> None:
    sent = POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    body = before + b"7FFFFFF\r\n{"
    with connect(bounded) as connection:
        connection.sendall(sent)
        time.sleep(0.02)
        step = -(-len(body) // pieces)
        for start in range(0, len(body), step):
            connection.sendall(body[start : start + step])
            time.sleep(0.005)
        connection.settimeout(LIMITS.body_timeout_s / 2)
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"at most 8388608 bytes" in answer


def test_what_looks_like_a_large_chunk_and_is_none_is_read(bounded: RunningServer) -> None:
    body = json.dumps(completion(prompt="7FFFFFFF\r\n", max_tokens=1)).encode()
    text = body + b"\r\n7FFFFFFF\r\n"
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(text) - 12, text[:-12])
    request = POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunk
    with connect(bounded) as connection:
        connection.sendall(request * 2)
        answers = b""
        while answers.count(b"HTTP/1.1 200 ") < 2:
            piece = connection.recv(65536)
            assert piece, answers
            answers += piece


def test_clients_that_do_not_speak_http_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with running(Scene(limits=LIMITS)) as server:
        for _ in range(20):
            with connect(server) as connection:
                connection.sendall(b"nonsense\r\n\r\n")
                assert b"400" in read_to_end(connection)
    assert caplog.text.count("not HTTP") == 1
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    "encoding",
    [b"gzip, chunked", b"gzip", b"identity", b"chunked, chunked", b"chunked\r\nTransfer-Encoding: gzip"],
)
def test_a_transfer_encoding_that_is_not_understood_is_refused(bounded: RunningServer, encoding: bytes) -> None:
    """Read as chunked alone, the body would be the compressed bytes, or end where the sender did not end it."""
    body = json.dumps(completion(max_tokens=1)).encode()
    with connect(bounded) as connection:
        connection.sendall(
            POST_HEAD + b"Transfer-Encoding: %s\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (encoding, len(body), body)
        )
        answer = read_to_end(connection)
    assert answer.count(b"HTTP/1.1") == 1
    status, error = status_and_error(answer)
    assert status in (400, 501)
    assert error["type"] == "invalid_request_error"


def test_a_chunked_body_is_read(bounded: RunningServer) -> None:
    body = json.dumps(completion(max_tokens=1)).encode()
    with connect(bounded) as connection:
        connection.sendall(POST_HEAD + b"Transfer-Encoding: Chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(
    "after",
    [b"garbage\r\n\r\n", b"}", b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n", b"x" * 300_000],
    ids=["garbage", "length too short", "broken head", "much"],
)
@pytest.mark.parametrize("num_requests", [1, 3])
def test_what_follows_a_request_does_not_cost_its_answer(
    bounded: RunningServer, after: bytes, num_requests: int
) -> None:
    body = json.dumps(completion(max_tokens=2)).encode()
    request = POST_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with connect(bounded) as connection:
        connection.sendall(request * num_requests + after)
        answer = read_to_end(connection)
    assert answer.count(b"HTTP/1.1 200 OK") == num_requests
    assert answer.count(b'"finish_reason"') == num_requests
    assert answer.lower().count(b"connection: close") == 1


def test_a_malformed_body_does_not_cost_the_answers_before_it(bounded: RunningServer) -> None:
    body = json.dumps(completion(max_tokens=2)).encode()
    request = POST_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body
    with connect(bounded) as connection:
        connection.sendall(request * 2 + POST_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + request)
        answer = read_to_end(connection)
    assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 200 OK") == 2
    assert answer.count(b'"finish_reason"') == 2


def test_a_target_that_is_no_url_does_not_either(bounded: RunningServer) -> None:
    with connect(bounded) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" * 2 + b"GET http:// HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = read_to_end(connection)
    assert answer.count(b"HTTP/1.1 200 OK") == 2


def test_a_request_that_was_answered_early_has_no_second_answer(bounded: RunningServer) -> None:
    """The route is not there, which is said at once; then the body turns out to be malformed."""
    with connect(bounded) as connection:
        connection.sendall(b"POST /none HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        answer = connection.recv(65536)
        connection.sendall(b"zz\r\n")
        answer += read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def test_no_100_follows_a_refusal(bounded: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with connect(bounded) as connection:
        connection.sendall(POST_HEAD + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        status, _ = status_and_error(read_to_end(connection))
    assert httpx.get(f"{bounded.base_url}/version").status_code == 200  # by then the log has it
    assert status == 400
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize(
    "request_bytes",
    [b"GET /version HTTP/1.0\r\n\r\n", b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"],
    ids=["1.0", "close"],
)
def test_stray_bytes_behind_the_last_request_do_not_cost_its_answer(
    bounded: RunningServer, request_bytes: bytes
) -> None:
    """A closed connection would answer them with a reset: the client's next write fails, and with it all it does."""
    with connect(bounded) as connection:
        connection.sendall(request_bytes)
        for _ in range(3):
            time.sleep(0.05)
            connection.sendall(b"\r\n")
        assert read_to_end(connection).startswith(b"HTTP/1.1 200 OK")


def test_a_large_last_answer_may_be_read_slowly() -> None:
    """For longer than a client that was answered may linger."""
    with running(Scene(max_model_len=200_000, num_blocks=60_000)) as server:
        server.play(lambda prompt, so_far, seed: 75)
        body = json.dumps(completion(prompt=[75] * 100_000, n=64, max_tokens=1, echo=True)).encode()
        with connect(server, receive_buffer=4096) as connection:
            connection.sendall(POST_HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            time.sleep(3)
            assert len(answer.read()) == int(answer.headers["content-length"])


def test_the_first_bytes_of_a_next_request_have_a_deadline_too(bounded: RunningServer) -> None:
    with running(Scene(limits=replace(LIMITS, idle_timeout_s=60))) as server, connect(server) as connection:
        connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\n\r\nGET /ver")
        assert read_to_end(connection).count(b"HTTP/1.1 200 OK") == 1  # which gives up after 5 s


@pytest.mark.parametrize(
    "rest",
    [b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b"Transfer-Encoding: chunked\r\n\r\n" + b"f" * 20 + b"\r\n"],
    ids=["no number", "beyond any number"],
)
def test_a_body_that_is_not_http_is_400(bounded: RunningServer, rest: bytes) -> None:
    with connect(bounded) as connection:
        connection.sendall(POST_HEAD + rest)
        status, error = status_and_error(read_to_end(connection))
    assert (status, error["type"]) == (400, "invalid_request_error")


def test_a_body_without_a_length_is_answered(bounded: RunningServer) -> None:
    with connect(bounded) as connection:
        connection.sendall(POST_HEAD + b"\r\n" + json.dumps(completion()).encode())
        status, error = status_and_error(read_to_end(connection))
    assert status == 400
    assert "JSON" in str(error["message"])


@pytest.mark.parametrize(
    "beginning",
    [b"", b"GET /he", b"GET /health HTTP/1.1\r\nHost: x\r\n", b"POST /health HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"],
    ids=["nothing", "line", "headers", "body"],
)
def test_a_client_that_stops_talking_is_closed(bounded: RunningServer, beginning: bytes) -> None:
    with connect(bounded) as connection:
        connection.sendall(beginning)
        read_to_end(connection)  # which gives up after 5 s


def test_a_client_that_drips_is_closed(bounded: RunningServer) -> None:
    with connect(bounded) as connection:
        connection.settimeout(0.02)
        started_s = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - started_s < 5:
                connection.sendall(b"G" if time.monotonic() - started_s < 0.01 else b"E")
                time.sleep(0.02)


def test_an_idle_connection_is_closed(bounded: RunningServer) -> None:
    with connect(bounded) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        started_s = time.monotonic()
        assert b"200 OK" in read_to_end(connection)
        assert time.monotonic() - started_s > 0.2


def test_a_connection_serves_many_requests_over_more_time_than_one_may_take(bounded: RunningServer) -> None:
    with httpx.Client(base_url=bounded.base_url) as client:
        for _ in range(5):
            time.sleep(0.1)
            assert client.get("/health").status_code == 200


def test_an_answer_may_take_longer_than_any_input(bounded: RunningServer) -> None:
    bounded.play(lambda prompt, so_far, seed: 75)
    bounded.executor.delay_s = 0.02
    with connect(bounded) as connection:
        body = json.dumps(completion(stream=True, max_tokens=60)).encode()
        connection.sendall(
            POST_HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"\r\n"
        )  # stray bytes after the body, as some old clients send
        assert b"[DONE]" in read_to_end(connection)
    bounded.reset()


def test_connections_beyond_the_limit_are_closed(bounded: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    held = [connect(bounded) for _ in range(8)]
    time.sleep(0.05)
    for _ in range(3):
        with connect(bounded) as one_more:
            assert read_to_end(one_more) == b""
            assert bounded.num_connections() == len(held), "it is the one that went, and no idle one"
    assert caplog.text.count("8 connections are open, which is the limit") == 1
    for connection in held:
        connection.close()
    time.sleep(0.05)
    assert httpx.get(f"{bounded.base_url}/health").status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_does_not_read_is_cut_off(stream: bool) -> None:
    config = replace(Scene().config, stream_send_timeout_s=0.3)
    scene = Scene(config=config, limits=LIMITS, max_model_len=200_000, num_blocks=60_000)
    body = completion(stream=stream, n=64, max_tokens=3000, return_token_ids=True)
    if not stream:
        body |= {"prompt": [75] * 100_000, "n": 2, "max_tokens": 1}
    with running(scene) as server:
        server.play(lambda prompt, so_far, seed: 75)
        with connect(server, receive_buffer=4096) as connection:
            content = json.dumps(body).encode()
            connection.sendall(POST_HEAD + b"Content-Length: %d\r\n\r\n" % len(content) + content)
            deadline_s = time.monotonic() + 20
            while not server.num_connections() and time.monotonic() < deadline_s:
                time.sleep(0.005)
            while server.num_connections() and time.monotonic() < deadline_s:
                time.sleep(0.05)
            assert server.num_connections() == 0


def test_a_client_that_reads_late_gets_its_whole_stream() -> None:
    with running(Scene(max_model_len=200_000, num_blocks=60_000)) as server:
        server.play(lambda prompt, so_far, seed: 75 + len(so_far) % 2)
        with connect(server, receive_buffer=4096) as connection:
            content = json.dumps(completion(stream=True, n=16, max_tokens=1000, return_token_ids=True)).encode()
            connection.sendall(POST_HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
            time.sleep(0.3)
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            *events, done = answer.read().split(b"\n\n")[:-1]
    assert done == b"data: [DONE]"
    choices = [json.loads(event.removeprefix(b"data: "))["choices"][0] for event in events]
    for index in range(16):
        ids = [token_id for c in choices if c["index"] == index for token_id in c["token_ids"]]
        assert ids == [75, 76] * 500


def test_a_client_that_does_not_read_is_not_looked_at_until_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tokens are made for it meanwhile."""
    counts, more, send = Counter[str](), TokenStreamResponse._on_more, TokenStreamResponse._send

    def counted_more(response: TokenStreamResponse) -> None:
        counts["calls in vain"] += response._is_sending
        more(response)

    async def counted_send(response: TokenStreamResponse, *arguments: Any) -> None:
        counts["sends"] += 1
        await send(response, *arguments)

    monkeypatch.setattr(TokenStreamResponse, "_on_more", counted_more)
    monkeypatch.setattr(TokenStreamResponse, "_send", counted_send)
    with running(Scene(max_model_len=200_000, num_blocks=60_000)) as server:
        server.play(lambda prompt, so_far, seed: 75)
        with connect(server, receive_buffer=4096) as connection:
            content = json.dumps(completion(stream=True, n=32, max_tokens=1500, return_token_ids=True)).encode()
            connection.sendall(POST_HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
            while not counts["sends"] or server.engine.snapshot.num_running:
                time.sleep(0.05)
            assert b"[DONE]" in read_to_end(connection)
    assert counts["calls in vain"] <= counts["sends"]


def test_an_upgrade_is_not_made(bounded: RunningServer) -> None:
    with connect(bounded) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
        answer = read_to_end(connection)
    assert b"200 OK" in answer
    assert b"connection: close" in answer
