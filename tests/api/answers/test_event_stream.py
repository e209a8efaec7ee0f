from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from sse_starlette import ServerSentEvent
from sse_starlette.sse import AppStatus
from starlette.types import Message, Receive, Scope

from service.api.answers.event_stream import EventStreamResponse, json_event
from service.api.context import ApiContext
from service.api.disconnect import ABORT_CONNECTION
from service.config import ApiConfig


class Listener:
    """An ASGI client, what the response is given, and what becomes of it.

    leaves: at the first event. stalls: it reads nothing from the first event on.
    """

    def __init__(self, *, leaves: bool = False, stalls: bool = False) -> None:
        self.config = ApiConfig(("m",), stream_keepalive_s=0.02, stream_send_timeout_s=0.05)
        self.messages: list[Message] = []
        self.ends: list[str] = []
        self.unread = self
        self._leaves, self._stalls = leaves, stalls
        self._left = asyncio.Event()

    def tell(self, seconds: float) -> None:
        self.ends.append(f"unread for {seconds}")

    async def receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        if message["type"] == "http.response.body" and message["body"].startswith(b"event"):
            if self._leaves:
                self._left.set()
            if self._stalls:
                await asyncio.Event().wait()

    async def listen(self, events: AsyncIterator[ServerSentEvent], scope: Scope | None = None) -> None:
        response = EventStreamResponse(events, cast(ApiContext, self), lambda: self.ends.append("over"))
        await response({"type": "http", "method": "GET", **(scope or {})}, cast(Receive, self.receive), self.send)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


class Events:
    """One event, then `seconds` of nothing, then another. is_closed: once they are no longer taken."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.is_closed = False

    async def all(self) -> AsyncIterator[ServerSentEvent]:
        try:
            yield json_event("1", "a")
            await asyncio.sleep(self._seconds)
            yield json_event("2", "b")
        finally:
            self.is_closed = True


def test_events_then_done_in_lines_that_end_in_lf() -> None:
    async def scene() -> None:
        listener, events = Listener(), Events(0)
        await listener.listen(events.all())
        assert listener.body == b"event: a\ndata: 1\n\nevent: b\ndata: 2\n\ndata: [DONE]\n\n"
        headers = dict(listener.messages[0]["headers"])
        assert headers[b"content-type"] == b"text/event-stream; charset=utf-8"
        assert (headers[b"cache-control"], headers[b"x-accel-buffering"]) == (b"no-cache", b"no")
        assert (listener.ends, events.is_closed) == (["over"], True)

    asyncio.run(scene())


def test_silence_is_kept_alive() -> None:
    async def scene() -> None:
        listener = Listener()
        await listener.listen(Events(0.2).all())
        assert b"\n\n: keep-alive\n\n" in listener.body
        assert b"\r" not in listener.body
        assert listener.body.endswith(b"[DONE]\n\n")

    asyncio.run(scene())


def test_who_leaves_ends_it_at_once() -> None:
    async def scene() -> None:
        listener, events = Listener(leaves=True), Events(60)
        await asyncio.wait_for(listener.listen(events.all()), 10)
        assert b"data: 2" not in listener.body
        assert (listener.ends, events.is_closed) == (["over"], True)

    asyncio.run(scene())


def test_who_does_not_read_loses_the_connection() -> None:
    async def scene() -> None:
        listener, events = Listener(stalls=True), Events(0)
        scope: dict[str, Any] = {"state": {ABORT_CONNECTION: lambda: listener.ends.append("aborted")}}
        await asyncio.wait_for(listener.listen(events.all(), scope), 10)
        assert (listener.ends, events.is_closed) == (["unread for 0.05", "aborted", "over"], True)

    asyncio.run(scene())


@pytest.mark.parametrize("failing", [True, False])
def test_it_ends_once_whatever_happens(failing: bool) -> None:
    async def fail() -> AsyncIterator[ServerSentEvent]:
        raise LookupError
        yield

    async def scene() -> None:
        listener = Listener()
        if failing:
            with pytest.raises(LookupError):
                await listener.listen(fail())
        else:
            await listener.listen(Events(60).all(), {"method": "HEAD"})
            assert listener.body == b""
        assert listener.ends == ["over"]

    asyncio.run(scene())


def test_the_exit_of_a_server_does_not_cut_it() -> None:
    """sse-starlette would cut every stream of the process when uvicorn is told to exit."""

    async def scene() -> None:
        listener = Listener()
        await listener.listen(Events(0).all())
        AppStatus.handle_exit = staticmethod(AppStatus.handle_exit)
        original, AppStatus.original_handler = AppStatus.original_handler, None
        try:
            AppStatus.handle_exit()
            await listener.listen(Events(0.01).all())
            assert listener.body.endswith(b"data: [DONE]\n\n")
            assert not AppStatus.should_exit
        finally:
            AppStatus.original_handler = original

    asyncio.run(scene())
