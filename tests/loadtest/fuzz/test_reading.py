import pytest

from loadtest.fuzz.reading import Reading, Rest, SeenRequest, read_requests

GET = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
SEEN = SeenRequest("GET", False)
POST = b"POST /tokenize HTTP/1.1\r\nHost: h\r\n"


def test_whole_requests_are_counted_to_the_end() -> None:
    chunked = POST + b"Transfer-Encoding: Chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\nx: y\r\n\r\n"
    with_length = POST + b"Content-Length: %d\r\n\r\n" % len(GET) + GET
    read = read_requests(b"\r\n" + GET + chunked + with_length + GET)
    assert [request.method for request in read.requests] == ["GET", "POST", "POST", "GET"]
    assert read.rest is Rest.NOTHING


def test_zeros_before_the_size_of_a_chunk_change_nothing() -> None:
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 40 + b"2\r\n{}\r\n" + b"0" * 53 + b"\r\n\r\n"
    assert len(read_requests(chunked + GET).requests) == 2


@pytest.mark.parametrize(
    "last",
    [
        b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
        b"GET /health HTTP/1.0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: h\r\nConnection: x, upgrade\r\nUpgrade: h2c\r\n\r\n",
        b"CONNECT h:80 HTTP/1.1\r\nHost: h\r\n\r\n",
    ],
)
def test_behind_a_connections_last_request_nothing_is_read(last: bytes) -> None:
    read = read_requests(last + GET)
    assert len(read.requests) == 1
    assert read.rest is Rest.UNREAD


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health\r\nHost: h\r\n\r\n",
        b"GET /health HTTP/2.0\r\nHost: h\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET health HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nhost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost : h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: \0\r\n\r\n",
        b"GET / HTTP/1.1\nHost: h\r\nX: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\nX: a\rb\r\n\r\n",
        POST + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        POST + b"Content-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
        POST + b"Content-Length: +2\r\n\r\n{}",
        POST + b"Content-Length: 2, 2\r\n\r\n{}",
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_head(head: bytes) -> None:
    assert read_requests(GET + head + GET) == Reading((SEEN,), Rest.MALFORMED)


@pytest.mark.parametrize(
    "chunks",
    [b"2\n{}\r\n", b"x\r\n", b"2\r\n{}x\r\n", b" 2\r\n{}\r\n", b"-1\r\n", b"2;\0\r\n{}", b"0\r\nbad trailer\r\n\r\n"],
)
def test_what_is_no_body(chunks: bytes) -> None:
    read = read_requests(POST + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert read == Reading((), Rest.MALFORMED, SeenRequest("POST", False))


@pytest.mark.parametrize(
    "whole", [GET, POST + b"Content-Length: 2\r\n\r\n{}", POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
)
def test_every_beginning_is_incomplete(whole: bytes) -> None:
    for size in range(1, len(whole)):
        read = read_requests(GET + whole[:size])
        assert (read.requests, read.rest) == ((SEEN,), Rest.INCOMPLETE)
