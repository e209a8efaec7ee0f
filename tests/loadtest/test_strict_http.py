import asyncio

import pytest

from loadtest.http_response import BadResponseError
from loadtest.strict_http import Answer, read_answer

HEAD = b"HTTP/1.1 200 OK\r\n"


def read(data: bytes, method: str = "GET", http_1_0: bool = False) -> tuple[Answer | None, bytes]:
    """The first answer, and what is left."""

    async def scene() -> tuple[Answer | None, bytes]:
        reader = asyncio.StreamReader(limit=4096)
        reader.feed_data(data)
        reader.feed_eof()
        answer = await read_answer(reader, method=method, http_1_0=http_1_0)
        return answer, await reader.read(-1)

    return asyncio.run(scene())


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (HEAD + b"Content-Length: 3\r\n\r\nabc", b"abc"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", b"abc"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"content-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    ],
)
def test_an_answer_is_read_to_its_end_and_no_further(data: bytes, body: bytes) -> None:
    answer, left = read(data + b"HTTP/1.1 400 next")
    assert answer is not None
    assert (answer.body, left) == (body, b"HTTP/1.1 400 next")


def test_head_has_no_body() -> None:
    answer, left = read(HEAD + b"content-length: 3\r\n\r\nHTTP/1.1", method="HEAD")
    assert answer is not None
    assert left == b"HTTP/1.1"


def test_the_end_of_the_connection_ends_the_body_of_an_old_one_only() -> None:
    data = HEAD + b"connection: close\r\n\r\nabc"
    answer, _ = read(data, http_1_0=True)
    assert answer == Answer(200, {"connection": "close"}, b"abc", True)
    with pytest.raises(BadResponseError):
        read(data)


def test_nothing_is_no_answer() -> None:
    assert read(b"") == (None, b"")


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\ncontent-length: 0\n\n",
        b"HTTP/1.1 600 OK\r\ncontent-length: 0\r\n\r\n",
        b"<html>\r\n",
        HEAD + b"content-length : 0\r\n\r\n",
        HEAD + b"content-length: 0\r\ncontent-length: 0\r\n\r\n",
        HEAD + b"content-length: 0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"content-length: +1\r\n\r\na",
        HEAD + b"x: \0\r\ncontent-length: 0\r\n\r\n",
        HEAD + b" folded\r\n\r\n",
        HEAD + b"\r\n",
        HEAD + b"transfer-encoding: gzip\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n2;a=b\r\nab\r\n0\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
        HEAD + b"x: " + b"y" * 9000 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    ],
)
def test_what_a_server_may_not_send(data: bytes) -> None:
    with pytest.raises(BadResponseError):
        read(data)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 2",
        HEAD + b"content-length: 3\r\n\r\nab",
        HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n",
    ],
)
def test_an_answer_that_is_cut(data: bytes) -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        read(data)
