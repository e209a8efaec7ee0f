"""A client's connection: work stops when it has gone, as Starlette cancels no handler by itself; or we cut it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope

Result = TypeVar("Result")

ABORT_CONNECTION = "abort_connection"


class ClientGone(Exception):
    """The client closed the connection before the answer was ready; nothing that is sent now is read."""


async def run_unless_disconnected(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`; if the client disconnects first, `work` is cancelled and ClientGone is raised.

    The body must have been read before, so that the next message can only be the disconnect.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientGone
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
        del task, working, watching  # an exception refers to this frame by its traceback: no reference cycle


async def disconnected(receive: Receive) -> None:
    """Returns when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


def abort_connection(scope: Scope) -> None:
    """Cut the connection without waiting for unsent data; our HTTP server puts the function for it into `state`."""
    abort: Callable[[], None] | None = scope.get("state", {}).get(ABORT_CONNECTION)
    if abort is not None:
        abort()
