"""Against a server that answers as each test says: what breaks a rule is seen, and what does not is let pass."""

import asyncio
from collections import Counter

import pytest

import loadtest.fuzz.exchange as exchange
from loadtest.fuzz.cases import Case
from loadtest.fuzz.exchange import run_case

GET = b"GET /health HTTP/1.1\r\nHost: h\r\n\r\n"
LATER = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx"
ERROR = b'{"error":{"message":"m","type":"t","param":null,"code":null}}'
OK = b"HTTP/1.1 200 OK\r\nx-request-id: 1\r\ncontent-length: 0\r\n\r\n"


def refusal(status: bytes = b"400 Bad Request", close: bytes = b"connection: close\r\n") -> bytes:
    return b"HTTP/1.1 %s\r\nx-request-id: 1\r\n%scontent-length: %d\r\n\r\n%s" % (status, close, len(ERROR), ERROR)


def fault(sent: bytes, answered: bytes, *, ends: bool = True) -> str | None:
    """What is said of a server that answers so to all that is sent.

    ends: it closes behind an answer that says so, else when the client has half closed; if not, it never does.
    """

    async def scene() -> str | None:
        over = asyncio.Event()

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(len(sent))
            writer.write(answered)
            if not ends:
                await over.wait()
            elif b"connection: close" not in answered:
                await reader.read(-1)
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            found = await run_case(Case(0, "test", sent, (len(sent),), False), port, Counter())
            over.set()
            await asyncio.sleep(0.01)
        return found

    return asyncio.run(scene())


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (GET, OK),
        (GET * 2, OK * 2),
        (GET + b"x\r\n\r\n", OK + refusal()),
        (GET + b"x\r\n\r\n", OK),
        (b"x\r\n\r\n", b""),
        (b"GET / HT", b""),
        (LATER, refusal(close=b"")),
        (GET * 2, refusal(b"431 Too Large")),
        (GET, refusal(b"501 Not Implemented")),
    ],
)
def test_what_a_server_may_do(sent: bytes, answered: bytes) -> None:
    assert fault(sent, answered) is None


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (GET, OK * 2),
        (GET, OK + refusal()),
        (GET, refusal(b"500 Internal Server Error")),
        (GET, refusal(b"503 Unavailable")),
        (GET, OK[:-9]),
        (GET, b"HTTP/1.1 400 Bad Request\r\nx-request-id: 1\r\ncontent-length: 2\r\n\r\nno"),
        (GET * 2, refusal() + OK),
        (b"x\r\n\r\n", OK),
        (b"GET /health\r\nHost: h\r\n\r\n", OK),
        (b"x\r\n\r\n", refusal() * 2),
        (b"x\r\n\r\n" + GET, refusal(close=b"")),
        (LATER, OK + refusal()),
        (b"GET / HTTP/1.0\r\n\r\n" + GET, OK * 2),
    ],
)
def test_what_it_may_not(sent: bytes, answered: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ENDS_WITHIN_S", 0.3)  # an answer that breaks off is waited for
    assert fault(sent, answered) is not None


@pytest.mark.parametrize(("sent", "answered"), [(GET, OK), (GET, b""), (b"x\r\n\r\n", b"")])
def test_a_hang_is_told(sent: bytes, answered: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ENDS_WITHIN_S", 0.3)
    assert "no end within" in str(fault(sent, answered, ends=False))
