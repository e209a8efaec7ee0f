"""A minimal HTTP/1.1 client on asyncio's transports: sends one streaming request and fills its record.

Designed so that the client does not limit the measurement: no task, queue or coroutine per chunk, and one clock
reading per received segment. All of it runs in one event loop.
"""

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

import orjson

from loadtest.http_response import BadResponseError, ResponseParser
from loadtest.server_sent_events import EventParser
from loadtest.stream_record import EventReader, StreamRecord

_MAX_ERROR_BODY_BYTES = 4096


class HttpClient:
    """Sends requests to one server over kept-alive connections; opens as many as are needed at a time."""

    def __init__(self, base_url: str, headers: Mapping[str, str] | None = None) -> None:
        """base_url: such as `http://127.0.0.1:8000`; a path in it is put before each request's path. Raises
        ValueError."""
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"base URL must be http://host:port or https://host:port, not {base_url!r}")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        self._head = "".join(
            f"{name}: {value}\r\n" for name, value in {"Host": parts.netloc, **(headers or {})}.items()
        )
        self._idle: list[_Connection] = []

    async def connect_ahead(self, count: int) -> None:
        """Open `count` connections for later use. Raises OSError."""
        self._idle.extend(await asyncio.gather(*(self._connect() for _ in range(count))))

    async def stream(self, path: str, body: bytes, record: StreamRecord, timeout_s: float) -> None:
        """Post `body` and fill `record`. Network and protocol failures go to `record.error`; none is raised.

        If a kept-alive connection turns out to be closed before any byte of the answer, another one is tried.
        """
        request = self._request_bytes(path, body)
        exchange = _Exchange(record)
        try:
            async with asyncio.timeout(timeout_s):
                await self._run(request, exchange)
        except TimeoutError:
            exchange.fail("timeout", f"no end within {timeout_s:g} s")
        except OSError as error:
            exchange.fail("connect_failed", str(error))
        exchange.reader.finish()

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    async def _run(self, request: bytes, exchange: "_Exchange") -> None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                await self._exchange_on(connection, request, exchange)
                if not exchange.closed_before_answer:
                    return
                exchange.reset()
        await self._exchange_on(await self._connect(), request, exchange)

    async def _exchange_on(self, connection: "_Connection", request: bytes, exchange: "_Exchange") -> None:
        try:
            await connection.perform(request, exchange)
        except BaseException:
            connection.close()
            raise
        if connection.is_open and exchange.reusable:
            self._idle.append(connection)
        else:
            connection.close()

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        return connection

    def _request_bytes(self, path: str, body: bytes) -> bytes:
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\n{self._head}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1") + body


class _Exchange:
    """One request and its answer: turns the connection's bytes into the record."""

    __slots__ = ("_error_body", "_events", "_record", "_response", "closed_before_answer", "ended", "reader")

    def __init__(self, record: StreamRecord) -> None:
        self._record = record
        self.reader = EventReader(record)
        self.reset()

    def reset(self) -> None:
        """Forget a first try that got no answer."""
        self._response = ResponseParser()
        self._events = EventParser()
        self._error_body = b""
        self._record.error = ""
        self.ended = False
        self.closed_before_answer = False

    @property
    def reusable(self) -> bool:
        """Whether the connection can be used for another request."""
        return self._response.complete and self._response.keep_alive

    def mark_sent(self) -> None:
        """Call when the request has been handed to the socket."""
        self._record.sent_s = time.perf_counter()

    def received(self, data: bytes) -> None:
        """Call with received bytes of the answer."""
        now = time.perf_counter()
        try:
            self._body(self._response.feed(data), now)
        except (BadResponseError, orjson.JSONDecodeError) as error:
            self.fail("bad_response", str(error))
        if self._response.complete and not self.ended:
            self._complete(now)

    def connection_lost(self, error: Exception | None) -> None:
        """Call when the connection has ended. A response without length or chunks is complete then."""
        if self.ended:
            return
        self._response.feed_eof()
        if self._response.complete:
            self._complete(time.perf_counter())
        elif self._response.started:
            self.fail("disconnected_mid_stream", f"after {len(self._record.chunk_times)} chunks")
        else:
            self.closed_before_answer = True
            self.fail("disconnected_before_answer", str(error or "closed"))

    def fail(self, kind: str, detail: str) -> None:
        """End the request with an error, unless it already has one."""
        self.ended = True
        self._record.end_s = time.perf_counter()
        self._record.error = self._record.error or f"{kind}: {detail}"

    def _body(self, data: bytes, now: float) -> None:
        if not data:
            return
        if self._response.status == 200 and self._response.is_event_stream:
            for event in self._events.feed(data):
                self.reader.read(event, now)
        elif len(self._error_body) < _MAX_ERROR_BODY_BYTES:
            self._error_body += data

    def _complete(self, now: float) -> None:
        self.ended = True
        record = self._record
        record.end_s = record.end_s or now
        if self._response.status != 200:
            self.fail(f"http_{self._response.status}", self._error_body[:300].decode(errors="replace"))
        elif not self._response.is_event_stream:
            self.fail("bad_response", f"content type {self._response.headers.get('content-type')}")
        elif not (self.reader.done or record.finish_reason or record.error):
            self.fail("unfinished_stream", "ended without a finish reason or [DONE]")


class _Connection(asyncio.Protocol):
    """One TCP or TLS connection; serves one exchange at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._exchange: _Exchange | None = None
        self._ended: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def perform(self, request: bytes, exchange: _Exchange) -> None:
        """Send the request; returns when the exchange has ended, whether it succeeded or failed."""
        assert self._transport is not None
        self._exchange = exchange
        self._ended = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            exchange.mark_sent()
            await self._ended
        finally:
            self._exchange = None

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or exchange.ended:
            self.close()
            return
        exchange.received(data)
        if exchange.ended:
            self._finish()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._exchange is not None:
            self._exchange.connection_lost(exc)
            self._finish()

    def _finish(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
