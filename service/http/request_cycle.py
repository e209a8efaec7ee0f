"""Additions to uvicorn's handling of one request and its answer (`RequestResponseCycle`)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def take_over(cycle: RequestResponseCycle, close: Callable[[], None]) -> None:
    """To be called at the end of a request's head. Puts `abort_connection` and `write_now` into its `state`.

    close: called where uvicorn would close the connection after the answer.
    """
    cycle.transport = cast(asyncio.Transport, _LingeringTransport(cycle.transport, close))
    if cycle.scope["http_version"] == "1.0":
        send = partial(_send_without_chunks, cycle, cycle.send)
        cycle.send = send  # type: ignore[method-assign]  # uvicorn makes the cycle itself
    cycle.scope["state"]["write_now"] = partial(_write_now, cycle)
    cycle.scope["state"]["abort_connection"] = partial(_abort, cycle)


def release(cycle: RequestResponseCycle) -> None:
    """Removes the connection from the request's `state`, as the connection holds the request. A reference cycle would
    live until a garbage collection, which then stops everything to scan thousands of dead connections."""
    state = cycle.scope["state"]
    del state["write_now"], state["abort_connection"]
    vars(cycle).pop("send", None)


def _write_now(cycle: RequestResponseCycle, piece: bytes) -> bool:
    """Write a piece of the answer's body that is not the last, as `cycle.send` would. False if `send` has to do it: it
    would block, or the answer has not begun or is not chunked."""
    if cycle.flow.write_paused or not cycle.chunked_encoding or cycle.response_complete:
        return False
    if not cycle.disconnected:
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
    return True


def _abort(cycle: RequestResponseCycle) -> None:
    """Cut the connection. Its loss is noticed later; else uvicorn would complain of an incomplete answer."""
    cycle.disconnected = True
    cycle.transport.abort()


async def _send_without_chunks(
    cycle: RequestResponseCycle, send: Callable[[Any], Awaitable[None]], message: Any
) -> None:
    """`cycle.send` for an HTTP/1.0 client, which does not know chunks: a body without a length ends with the
    connection.

    uvicorn writes chunks to every client.
    """
    if message["type"] == "http.response.start":
        if all(name.lower() != b"content-length" for name, _ in message["headers"]):
            cycle.chunked_encoding = False
    elif message["type"] == "http.response.body" and not cycle.expected_content_length:
        cycle.expected_content_length = len(message["body"])
    await send(message)


class _LingeringTransport:
    """A connection's transport as uvicorn's request cycle sees it; closing it is left to `close`."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
