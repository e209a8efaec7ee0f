"""Follows a batch on a server: by its event stream if it has one, else by polling."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from service.chat_client.server import BatchState, Server, ServerFault

_LOOK_EVERY_S = 0.25


def watch_batch(server: Server, batch_id: str, *, lines: bool) -> Iterator[BatchState | bytes]:
    """The batch's state whenever it changes, the last time when it has ended. lines: also the lines of its results as
    they come, each once; none of them from a server without event streams. Raises ServerFault when the server does
    not answer any more."""
    with suppress(ServerFault):  # not a Headrace server, or its stream has ended
        for told in server.batch_events(batch_id, lines=lines):
            yield told
            if isinstance(told, BatchState) and told.is_over:
                return
    while True:
        state = server.batch(batch_id)
        yield state
        if state.is_over:
            return
        time.sleep(_LOOK_EVERY_S)
