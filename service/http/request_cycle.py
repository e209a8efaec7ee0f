"""Additions to uvicorn's handling of one request and its answer (`RequestResponseCycle`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from service.http.direct_write import write_now
from service.http.http_1_0 import send_without_chunks


def take_over(cycle: RequestResponseCycle, close: Callable[[], None]) -> None:
    """To be called at the end of a request's head. Puts `abort_connection` and `write_now` into its `state`.

    close: called where uvicorn would close the connection after the answer.
    """
    cycle.transport = cast(asyncio.Transport, _LingeringTransport(cycle.transport, close))
    if cycle.scope["http_version"] == "1.0":
        send = partial(send_without_chunks, cycle, cycle.send)
        cycle.send = send  # type: ignore[method-assign]  # uvicorn makes the cycle itself
    cycle.scope["state"]["write_now"] = partial(write_now, cycle)
    cycle.scope["state"]["abort_connection"] = partial(_abort, cycle)


def release(cycle: RequestResponseCycle) -> None:
    """Removes the connection from the request's `state`, as the connection holds the request. A reference cycle would
    live until a garbage collection, which then stops everything to scan thousands of dead connections."""
    state = cycle.scope["state"]
    del state["write_now"], state["abort_connection"]
    vars(cycle).pop("send", None)


def _abort(cycle: RequestResponseCycle) -> None:
    """Cut the connection. Its loss is noticed later; else uvicorn would complain of an incomplete answer."""
    cycle.disconnected = True
    cycle.transport.abort()


class _LingeringTransport:
    """A connection's transport as uvicorn's request cycle sees it; closing it is left to `close`."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close
        self.write = transport.write

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
