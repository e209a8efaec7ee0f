"""What a server tells of a batch while it runs: pushed where the server does that, else asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

from service.chat_client.server import BatchState, Server, ServerFault

_LOOK_EVERY_S = 0.25


def watch_batch(server: Server, batch_id: str, *, lines: bool) -> Iterator[BatchState | bytes]:
    """Its state whenever that changes, the last time when it is over. lines: those of its results, too, as they come,
    each of them once or, where a server pushes nothing, none. Raises ServerFault once the server does not answer."""
    with suppress(ServerFault):  # none of ours, or it has ended
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
