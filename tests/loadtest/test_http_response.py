import pytest

from loadtest.http_response import BadResponseError, ResponseParser

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1a;x=y\r\nabcdefghijklmnopqrstuvwxyz\r\n2\r\n\r\n\r\n0\r\n\r\n"
)
BODY = b"helloabcdefghijklmnopqrstuvwxyz\r\n"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_chunked_body_in_pieces_of_any_size(size: int) -> None:
    parser = ResponseParser()
    body = b"".join(parser.feed(CHUNKED[i : i + size]) for i in range(0, len(CHUNKED), size))
    assert body == BODY
    assert parser.complete
    assert parser.keep_alive
    assert parser.is_event_stream


@pytest.mark.parametrize("cut", range(1, len(CHUNKED)))
def test_chunked_body_cut_anywhere_is_not_complete(cut: int) -> None:
    parser = ResponseParser()
    parser.feed(CHUNKED[:cut])
    parser.feed_eof()
    assert not parser.complete


def test_body_by_length() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\nConnection: Close\r\n\r\nno") == b"no"
    assert not parser.complete
    assert parser.feed(b"pe") == b"pe"
    assert (parser.status, parser.complete, parser.keep_alive) == (503, True, False)


def test_body_to_the_end() -> None:
    parser = ResponseParser()
    assert parser.feed(b"HTTP/1.0 200 OK\r\n\r\nall") == b"all"
    assert not parser.complete
    parser.feed_eof()
    assert parser.complete
    assert not parser.keep_alive


def test_empty_bodies_and_continue() -> None:
    parser = ResponseParser()
    parser.feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n")
    assert parser.complete
    assert parser.status == 204


@pytest.mark.parametrize(
    "data",
    [
        b"SMTP ready\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\nabc",
    ],
)
def test_nonsense_is_refused(data: bytes) -> None:
    with pytest.raises(BadResponseError):
        ResponseParser().feed(data)
