"""The response that follows kept events: first those that there are, then new ones as they come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from service.api.answers.sse import TokenStreamResponse
from service.api.context import ApiContext
from service.api.kept_events import KeptEvents

_AT_ONCE = 256
"""Events that are sent before other tasks get a turn."""


def following(events: KeptEvents, after: int, context: ApiContext, headers: dict[str, str]) -> TokenStreamResponse:
    """after: sequence number of the last event that the client has; -1: none."""
    return TokenStreamResponse(
        FollowedEvents(events, after + 1),
        context.recorder.times,
        context.unread,
        keepalive_s=context.config.stream_keepalive_s,
        send_timeout_s=context.config.stream_send_timeout_s,
        headers=headers,
    )


class FollowedEvents:
    """A `FrameSource`: the events from number `first` on. A follower that disconnects does not affect the others."""

    def __init__(self, events: KeptEvents, first: int) -> None:
        self._events = events
        self._next = first
        self._reader: Callable[[], None] | None = None
        self._forget: Callable[[], None] | None = None
        self.is_done = False

    def read_by(self, reader: Callable[[], None]) -> None:
        self._reader = reader
        self._forget = self._events.tell_to(reader)

    def take(self) -> bytes:
        if self.is_done:
            return b""
        taken = self._events.read(self._next, _AT_ONCE)
        self._next += len(taken)
        has_all = self._next >= len(self._events)
        self.is_done = has_all and self._events.has_ended
        if not has_all and self._reader is not None:
            asyncio.get_running_loop().call_soon(self._reader)
        return b"\n\n".join([*taken, b""])

    def close(self, reason: str) -> None:
        self.is_done, self._reader = True, None
        if self._forget is not None:
            self._forget()
