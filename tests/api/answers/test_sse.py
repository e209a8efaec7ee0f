from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest
from starlette.types import Message

from service.api.answers.sse import WRITE_NOW, TokenStreamResponse
from service.api.answers.sse_frames import DONE, data_frame
from service.core.host_times import HostTimes
from service.core.rare_warning import RareWarning
from service.errors import ServerError
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of, events_of

FRAMES = [data_frame(b"1"), data_frame(b"2"), DONE]


class Client:
    """An ASGI client that reads until it leaves (after `reads` chunks) or stops reading; a source of frames, too."""

    def __init__(self, reads: int = 1000, stalls: bool = False, takes_s: float = 0.0) -> None:
        self.times = HostTimes()
        self.unread = RareWarning(logging.getLogger("headrace"), "unread for %g s: %d")
        self.messages: list[Message] = []
        self.reasons: list[str] = []
        self.is_done = False
        self._frames = iter(FRAMES)
        self._num_ready = 0
        self._reads = reads
        self._stalls = stalls
        self._takes_s = takes_s
        self._left = asyncio.Event()

    async def receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.messages.append(message)
        if self._takes_s:
            await asyncio.sleep(self._takes_s)
        if len(self.messages) > self._reads:
            if self._stalls:
                await asyncio.Event().wait()
            self._left.set()
            await asyncio.sleep(0)

    def read_by(self, reader: Callable[[], None]) -> None:
        def have_one() -> None:
            self._num_ready += 1
            reader()

        for number in range(len(FRAMES)):
            asyncio.get_running_loop().call_later(0.002 * (number + 1), have_one)

    def take(self) -> bytes:
        if not self._num_ready:
            return b""
        self._num_ready -= 1
        frame = next(self._frames)
        self.is_done = frame is FRAMES[-1]
        return frame

    def close(self, reason: str) -> None:
        self.reasons.append(reason)

    def read(self, *, keepalive_s: float = 15.0, send_timeout_s: float = 30.0) -> TokenStreamResponse:
        return TokenStreamResponse(
            self,
            self.times,
            self.unread,
            keepalive_s=keepalive_s,
            send_timeout_s=send_timeout_s,
            headers={"x-a": "b"},
        )


def test_waiting_for_a_slow_client_is_no_time_of_the_hosts() -> None:
    for takes_s, counts in ((0.0, True), (0.03, False)):
        client = Client(takes_s=takes_s)
        asyncio.run(run(client, client.read()))
        assert client.messages[-1] == {"type": "http.response.body", "body": DONE, "more_body": False}
        assert (client.times.sse > 0) == counts


async def run(client: Client, response: TokenStreamResponse) -> None:
    scope = {"type": "http", "method": "POST"}
    await response(scope, client.receive, client.send)


def test_sends_all_frames_and_then_ends() -> None:
    async def scene() -> None:
        client = Client()
        await run(client, client.read())
        start, *bodies = client.messages
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert headers["cache-control"] == "no-cache"
        assert headers["x-accel-buffering"] == "no"
        assert headers["x-a"] == "b"
        assert b"".join(body["body"] for body in bodies) == b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n"
        assert not bodies[-1]["more_body"]
        assert len(client.reasons) == 1

    asyncio.run(scene())


def test_frames_that_the_server_takes_at_once_go_past_send_and_keep_their_order() -> None:
    async def scene() -> None:
        client = Client()
        takes = iter([True, False])

        def write_now(frame: bytes) -> bool:
            if taken := next(takes):
                client.messages.append({"type": "written", "body": frame})
            return taken

        scope = {"type": "http", "method": "POST", "state": {WRITE_NOW: write_now}}
        await client.read()(scope, client.receive, client.send)
        _, *bodies = client.messages
        assert [body["body"] for body in bodies] == FRAMES
        assert [body["type"] == "written" for body in bodies] == [True, False, False], "the end is sent, not written"

    asyncio.run(scene())


def test_while_a_client_is_waited_for_nothing_is_taken_and_then_all_is_sent_in_order() -> None:
    async def scene() -> None:
        client = Client(takes_s=0.02)  # all frames are ready before the first is sent
        await run(client, client.read())
        assert [body["body"] for body in client.messages[1:]] == FRAMES

    asyncio.run(scene())


def test_a_fault_while_writing_is_the_own_tasks() -> None:
    async def scene() -> None:
        client = Client()

        def write_now(frame: bytes) -> bool:
            raise RuntimeError("the connection is closed")

        with pytest.raises(RuntimeError, match="closed"):
            await client.read()({"type": "http", "state": {WRITE_NOW: write_now}}, client.receive, client.send)
        assert len(client.reasons) == 1

    asyncio.run(scene())


@pytest.mark.parametrize("reads", [1, 2])
def test_closes_once_when_the_client_leaves(reads: int) -> None:
    async def scene() -> None:
        client = Client(reads)
        await run(client, client.read())
        assert client.reasons == ["client_disconnected"]

    asyncio.run(scene())


def test_closes_although_the_frames_were_never_begun() -> None:
    async def scene() -> None:
        client = Client()

        async def leave_at_once(message: Message) -> None:
            raise OSError("gone")

        response = client.read()
        with pytest.raises(OSError, match="gone"):
            await response({"type": "http", "method": "POST"}, client.receive, leave_at_once)
        assert client.reasons == ["client_disconnected"]

    asyncio.run(scene())


def test_gives_up_on_a_client_that_does_not_read() -> None:
    async def scene() -> None:
        client = Client(1, stalls=True)
        began_s = time.monotonic()
        await run(client, client.read(send_timeout_s=0.02))
        assert time.monotonic() - began_s < 10, "not only when a keep-alive is due"
        assert client.reasons == ["send_timeout"]

    asyncio.run(scene())


def test_keeps_alive_from_before_the_first_token() -> None:
    config = replace(Scene().config, stream_keepalive_s=0.03)
    with running(Scene(config=config)) as server, httpx.Client(base_url=server.base_url) as http:
        server.say("late")
        server.executor.gate.clear()
        with http.stream("POST", CHAT, json=chat("hi", stream=True)) as response:
            lines = response.iter_lines()
            assert next(lines) == ": keep-alive"
            assert next(lines) == ""
            assert next(lines) == ": keep-alive"
            server.executor.gate.set()
            rest = "\n".join(lines)
        assert "[DONE]" in rest
        assert "\r" not in rest


def test_a_failing_request_ends_its_stream_with_an_error_event(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: 75 if len(so_far) < 3 else -1)
    events = events_of(http.post(COMPLETIONS, json=completion(stream=True)).text)
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "iii"
    assert set(events[-1]) == {"error"}
    assert events[-1]["error"]["type"] == "server_error"


def test_a_failing_request_fails_no_other(server: RunningServer, http: httpx.Client) -> None:
    server.play(lambda prompt, so_far, seed: -1 if prompt[-1] == 76 and len(so_far) > 2 else 75)
    server.executor.delay_s = 0.002
    with http.stream("POST", COMPLETIONS, json=completion(prompt=[75], stream=True, max_tokens=50)) as response:
        lines = response.iter_lines()
        next(lines)
        assert http.post(COMPLETIONS, json=completion(prompt=[76])).status_code == 500
        text = "\n".join(lines)
    assert text.count('"text"') == 49 or '"finish_reason":"length"' in text
    assert text.endswith("data: [DONE]\n")


def test_a_surprise_in_a_stream_is_told_without_its_text(server: RunningServer, http: httpx.Client) -> None:
    server.executor.fault = ValueError("/secret/path 0xdeadbeef")
    text = http.post(COMPLETIONS, json=completion(stream=True)).text
    assert events_of(text)[-1]["error"]["type"] == ServerError.error_type
    assert "secret" not in text


@pytest.mark.parametrize("timeout_s", [0.0, 10.0])
def test_draining_ends_every_stream_in_order(timeout_s: float) -> None:
    with running() as server, httpx.Client(base_url=server.base_url) as http:
        server.play(lambda prompt, so_far, seed: 75)
        server.executor.delay_s = 0.002
        with http.stream("POST", COMPLETIONS, json=completion(stream=True, max_tokens=200)) as response:
            lines = response.iter_lines()
            first = next(lines)
            server.drain(timeout_s)
            text = "\n".join([first, *lines]) + "\n"
        *chunks, last = events_of(text)
        if timeout_s:
            assert last["choices"][0]["finish_reason"] == "length"
        else:
            assert chunks
            assert "shutting down" in last["error"]["message"]
            assert last["error"]["code"] == "shutting_down"
        refusal = http.post(COMPLETIONS, json=completion())
        assert (refusal.status_code, error_of(refusal)["code"]) == (503, "shutting_down")
