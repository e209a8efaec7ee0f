"""CPU microseconds per frame of an event stream, by response class, without sockets and without an engine.

    python -m loadtest.frame_cost [--frames 20000] [--rounds 9]

Ready-made frames of 200 bytes go into a sink that costs nothing. `ready`: all frames are there at the start. `awaited`:
each frame comes in its own turn of the event loop, as tokens do, and that turn counts too. Times are CPU times of the
thread, the minimum over the rounds. The sink also accepts frames without an await (`write_now`), as our HTTP server
does.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import uvloop
from sse_starlette import EventSourceResponse
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Scope

from service.api.answers.sse import WRITE_NOW, TokenStreamResponse
from service.core.host_times import HostTimes
from service.core.rare_warning import RareWarning

FRAME = b"data: " + b"x" * 192 + b"\n\n"


class Frames(Protocol):
    """Where frames are put for a response. `is_empty` is true once the response has taken them all."""

    is_empty: bool

    def put(self, frame: bytes, *, is_last: bool) -> None: ...


class Pushed:
    """A `FrameSource`: putting a frame calls its reader directly."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_empty = True
        self._left: list[bytes] = []
        self._reader: Callable[[], None] = lambda: None

    def put(self, frame: bytes, *, is_last: bool) -> None:
        self._left.append(frame)
        self.is_empty, self._is_last = False, is_last
        self._reader()

    def read_by(self, reader: Callable[[], None]) -> None:
        self._reader = reader

    def take(self) -> bytes:
        if self.is_empty:
            return b""
        frame, self._left = b"".join(self._left), []
        self.is_empty, self.is_done = True, self._is_last
        return frame

    def close(self, reason: str) -> None:
        pass


class Awaited:
    """A source for responses that take an async iterator: the response awaits each frame."""

    def __init__(self) -> None:
        self.is_empty = True
        self._left: list[bytes] = []
        self._is_last = False
        self._news = asyncio.Event()

    def put(self, frame: bytes, *, is_last: bool) -> None:
        self._left.append(frame)
        self.is_empty, self._is_last = False, is_last
        self._news.set()

    async def all(self) -> AsyncIterator[bytes]:
        while not (self._is_last and self.is_empty):
            await self._news.wait()
            self._news.clear()
            frames, self._left, self.is_empty = self._left, [], True
            for frame in frames:
                yield frame


class Sink:
    """The client's side: accepts everything at once and never disconnects."""

    def __init__(self) -> None:
        self.num_bytes = 0

    async def send(self, message: Message) -> None:
        self.num_bytes += len(message.get("body", b""))

    def write_now(self, frame: bytes) -> bool:
        self.num_bytes += len(frame)
        return True

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody leaves")


Made = tuple[Frames, Response]


def _ours() -> Made:
    frames, unread = Pushed(), RareWarning(logging.getLogger(__name__), "%g %d")
    return frames, TokenStreamResponse(frames, HostTimes(), unread, keepalive_s=15.0, send_timeout_s=30.0, headers={})


def _streaming() -> Made:
    frames = Awaited()
    return frames, StreamingResponse(frames.all(), media_type="text/event-stream")


def _event_source() -> Made:
    frames = Awaited()
    return frames, EventSourceResponse(frames.all())


RESPONSES: dict[str, Callable[[], Made]] = {
    "our TokenStreamResponse": _ours,
    "Starlette's StreamingResponse": _streaming,
    "sse-starlette's EventSourceResponse": _event_source,
}


async def seconds_of(name: str, num_frames: int, *, awaited: bool) -> float:
    """CPU seconds of the thread for the whole stream."""
    frames, response = RESPONSES[name]()
    sink = Sink()
    scope: Scope = {"type": "http", "method": "GET", "state": {WRITE_NOW: sink.write_now}}
    answering = asyncio.ensure_future(response(scope, sink.receive, sink.send))
    await asyncio.sleep(0.01)  # let the response start and wait for its first frame
    began_s = time.thread_time()
    for number in range(1, num_frames + 1):
        frames.put(FRAME, is_last=number == num_frames)
        if awaited:
            await asyncio.sleep(0)
            while not frames.is_empty:
                await asyncio.sleep(0)
    await answering
    took_s = time.thread_time() - began_s
    assert sink.num_bytes == num_frames * len(FRAME)
    return took_s


async def least(name: str, num_frames: int, num_rounds: int, *, awaited: bool) -> float:
    """Minimum over the rounds, in microseconds per frame."""
    rounds = [await seconds_of(name, num_frames, awaited=awaited) for _ in range(num_rounds)]
    return min(rounds) / num_frames * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.frame_cost", description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    print(f"{'us a frame':40} ready awaited")
    for name in RESPONSES:
        us = [uvloop.run(least(name, options.frames, options.rounds, awaited=awaited)) for awaited in (False, True)]
        print(f"{name:40} {us[0]:5.2f} {us[1]:7.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
