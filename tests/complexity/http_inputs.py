"""Worst inputs of the connection and of the way through the app: request lines, headers, chunks, paths, nesting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import orjson
from prometheus_client import CollectorRegistry
from starlette.types import Message, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.server import ServerState

from service.api.app import create_app
from service.api.calls.large_json import LARGE_BYTES
from service.api.calls.nesting import check_nesting, may_be_deeper
from service.api.serving_state import ServingState
from service.config import ApiConfig, ConnectionLimits
from service.http.protocol import bounded_protocol
from service.metrics.instruments import Instruments
from service.metrics.recorder import Recorder
from service.storage.storage import Storage
from tests.complexity.growth import Work, WorstInput

_LIMITS = ConnectionLimits(max_header_bytes=2**30)
"""So that work beyond the limit can be measured too."""
_MOST_HEAD = ConnectionLimits().max_header_bytes
_ONE_READ = 256 * 1024
"""What the event loop reads from a socket at once."""


class _Transport(asyncio.Transport):
    """Swallows what is written."""

    def __init__(self) -> None:
        super().__init__()
        self._is_closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Nobody reads."""

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        """Nothing is read but what is given."""

    resume_reading = pause_reading


async def _reads_all(scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body"})


def _connection(reads: Sequence[bytes]) -> Work:
    """What a client sends, in reads; its requests are answered by an app that only reads them."""

    async def receive() -> None:
        config = Config(_reads_all, http="httptools", log_config=None, access_log=False, lifespan="off")
        config.load()
        protocol = bounded_protocol(_LIMITS)(config=config, server_state=ServerState(), app_state={})
        transport = _Transport()
        protocol.connection_made(transport)
        for read in reads:
            protocol.data_received(read)
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        protocol.connection_lost(None)

    return lambda: asyncio.run(receive())


def _chunks(n: int) -> Work:
    body = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * n + b"0\r\n\r\n"
    return _connection([body[at : at + _ONE_READ] for at in range(0, len(body), _ONE_READ)])


def _byte_by_byte(head: bytes) -> Work:
    return _connection([head[at : at + 1] for at in range(len(head))])


def _front_door(path: str, headers: list[tuple[bytes, bytes]], query: bytes = b"") -> Work:
    """A request on its way through all middleware to its route; the answer is that there is no model."""
    registry = CollectorRegistry()
    config = ApiConfig(served_model_names=("m",), allowed_origins=("http://a",), api_keys=("k",))
    app = create_app(ServingState(), config, Recorder(Instruments(registry)), registry, Storage(Path("unused"), 0))
    scope = {
        "type": "http",
        "method": "OPTIONS" if query else "GET",
        "path": path,
        "root_path": "",
        "query_string": query,
        "headers": [(b"authorization", b"Bearer k"), *headers],
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        """A sink."""

    async def call() -> None:
        await app({**scope, "state": {}}, receive, cast(Any, send))

    return lambda: asyncio.run(call())


def _depth(n: int) -> Work:
    body = orjson.dumps({"a": [[]] * n})
    value = orjson.loads(body)
    return lambda: check_nesting(value) if may_be_deeper(body) else None


HTTP_INPUTS = [
    WorstInput(
        "HTTP: a body in chunks of a byte",
        ("http/protocol.py", "http/request_cycle.py"),
        _chunks,
        10_000,
        43_000,
        "loop",
    ),
    WorstInput(
        "HTTP: a header a byte at a time",
        ("http/protocol.py",),
        lambda n: _byte_by_byte(b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * n + b"\r\n\r\n"),
        1_000,
        _MOST_HEAD,
        "stream",
    ),
    WorstInput(
        "HTTP: a path a byte at a time",
        ("http/protocol.py",),
        lambda n: _byte_by_byte(b"GET /" + b"a" * n + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
        1_000,
        _MOST_HEAD,
        "stream",
    ),
    WorstInput(
        "HTTP: requests in one read",
        ("http/protocol.py", "http/request_cycle.py"),
        lambda n: _connection([b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * n]),
        200,
        _ONE_READ // 27,
        "loop",
    ),
    WorstInput(
        "path: a model's long name",
        (
            "api/app.py",
            "api/endpoints/models.py",
            "api/middleware/error_barrier.py",
            "api/middleware/http_facts.py",
            "api/calls/validation.py",
        ),
        lambda n: _front_door("/v1/models/" + "a/" * n, []),
        100_000,
        _MOST_HEAD // 2,
        "loop",
    ),
    WorstInput(
        "path: a request's long name",
        ("api/endpoints/traces.py", "api/call_trace.py"),
        lambda n: _front_door("/v1/requests/" + "a" * n + "/trace", []),
        200_000,
        _MOST_HEAD,
        "loop",
    ),
    WorstInput(
        "path: nearly a route",
        ("api/app.py", "api/error_responses.py"),
        lambda n: _front_door("/v1/requests/" + "/trace" * n, []),
        40_000,
        _MOST_HEAD // 6,
        "loop",
    ),
    WorstInput(
        "headers of another origin",
        ("api/app.py",),
        lambda n: _front_door(
            "/v1/models",
            [
                (b"origin", b"http://a"),
                (b"access-control-request-method", b"GET"),
                (b"access-control-request-headers", b"a," * n),
            ],
            b"a&" * n,
        ),
        20_000,
        _MOST_HEAD // 2,
        "loop",
    ),
    WorstInput("JSON: how deep short lists are", ("api/calls/nesting.py",), _depth, 5_000, LARGE_BYTES // 3, "loop"),
]
