"""Minutes of clients that send anything, in any way, and leave at any time; a KV cache of 2,048 tokens.

Meanwhile and afterwards the answers to others are those of before, and in the end nothing is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
import time
from collections import Counter
from typing import Any

import httpx
import pytest

from tests.e2e.hostile_requests import MODEL, Call, draw_call
from tests.e2e.server_process import ServerProcess

pytestmark = pytest.mark.load

SECONDS = float(os.environ.get("HOSTILE_SECONDS", "60"))
NUM_CLIENTS = 24
ANSWERED_WITHIN_S = 120
FLAGS = (
    "--dtype float32 --device cpu --kv-cache-memory 12MiB --preemption adaptive --swap-space 3MiB --max-num-seqs 32"
    " --max-num-batched-tokens 128 --max-waiting-requests 64 --max-waiting-seconds 20"
).split()
EXPECTED = {200, 400, 404, 503}


class Connection:
    """One raw connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, url: str) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=4096))

    async def answer(self, pause_s: float) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body; pause_s: between pieces of a stream."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        if headers.get("transfer-encoding") != "chunked":
            return int(head[0].split()[1]), headers, await self.reader.readexactly(int(headers["content-length"]))
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
            await asyncio.sleep(pause_s)
        await self.reader.readexactly(2)
        return int(head[0].split()[1]), headers, body

    def leave(self, chance: random.Random) -> None:
        """In order, or with a reset."""
        if chance.random() < 0.5:
            wire = self.writer.get_extra_info("socket")
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


def as_bytes(call: Call) -> bytes:
    body = json.dumps(call.body).encode()
    head = f"POST {call.path} HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def check_answer(status: int, headers: dict[str, str], body: bytes) -> None:
    assert status in EXPECTED, body[:300]
    assert "x-request-id" in headers
    if status != 200:
        assert json.loads(body)["error"].keys() == {"message", "type", "param", "code"}
        assert status != 503 or "retry-after" in headers
    elif headers["content-type"].startswith("text/event-stream"):
        events = [event for event in body.decode().split("\n\n") if event and not event.startswith(":")]
        assert events[-1] == "data: [DONE]"
        errors = [error for event in events[:-1] if (error := json.loads(event[6:]).get("error"))]
        codes = {error["code"] for error in errors if error["type"] != "invalid_request_error"}
        assert codes <= {"overloaded"}, errors
    else:
        assert all(choice["finish_reason"] for choice in json.loads(body)["choices"])


class Client:
    """Goes on until its time is over. `seen` counts what came of it."""

    def __init__(self, url: str, seed: int, seen: Counter[str]) -> None:
        self._url = url
        self._chance = random.Random(seed)
        self._seen = seen

    async def run(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            call = draw_call(self._chance)
            deed = self._chance.choice([self._wait, self._wait, self._leave, self._drip, self._pipeline])
            connection = await Connection.to(self._url)
            try:
                async with asyncio.timeout(ANSWERED_WITHIN_S):
                    await deed(connection, call)
            except TimeoutError:
                pytest.fail(f"no answer within {ANSWERED_WITHIN_S} s: {str(call)[:500]}")
            finally:
                connection.leave(self._chance)

    async def _wait(self, connection: Connection, call: Call) -> None:
        connection.writer.write(as_bytes(call))
        await self._read(connection, call, pause_s=self._chance.choice([0, 0, 0, 0.02]))

    async def _drip(self, connection: Connection, call: Call) -> None:
        data = as_bytes(call)
        step = max(1, len(data) // 8)
        for start in range(0, len(data), step):
            connection.writer.write(data[start : start + step])
            await asyncio.sleep(self._chance.random() * 0.1)
        await self._read(connection, call)

    async def _pipeline(self, connection: Connection, call: Call) -> None:
        calls = [call, *(draw_call(self._chance) for _ in range(3))]
        connection.writer.write(b"".join(map(as_bytes, calls)))
        for each in calls[: self._chance.choice([1, 4])]:
            await self._read(connection, each)

    async def _leave(self, connection: Connection, call: Call) -> None:
        """In the headers, in the body, while it waits, in the stream; or first with the sending half."""
        data = as_bytes(call)
        sent = self._chance.choice([self._chance.randrange(1, 60), self._chance.randrange(60, len(data)), len(data)])
        connection.writer.write(data[:sent])
        if sent == len(data) and self._chance.random() < 0.6:
            if self._chance.random() < 0.3:
                connection.writer.write_eof()
            await connection.reader.read(self._chance.choice([1, 2000]))
        await asyncio.sleep(self._chance.choice([0, 0.01, 0.2]))
        self._seen["left"] += 1

    async def _read(self, connection: Connection, call: Call, pause_s: float = 0.0) -> None:
        status, headers, body = await connection.answer(pause_s)
        self._seen[str(status)] += 1
        try:
            check_answer(status, headers, body)
        except AssertionError as fault:
            raise AssertionError(f"{str(call)[:1000]}: {fault}") from None


GOLDEN: list[dict[str, Any]] = [
    {"seed": 7, "n": 3},
    {"temperature": 0},
    {"seed": 1, "regex": "[a-z ]{5,40}"},
    {"temperature": 0, "stop": ["e"], "max_tokens": 60},
]


async def golden_answers(url: str) -> list[list[str]]:
    """Drawn with a seed, greedy, held to a pattern, or stopped; each asked for until the server takes it."""
    question = {"role": "user", "content": "What is Headrace?"}
    ask: dict[str, Any] = {"model": MODEL, "max_tokens": 30, "messages": [question]}
    texts = []
    async with httpx.AsyncClient(base_url=url, timeout=ANSWERED_WITHIN_S) as client:
        for change in GOLDEN:
            while (answer := await client.post("/v1/chat/completions", json=ask | change)).status_code == 503:
                await asyncio.sleep(0.1)
            texts.append([choice["message"]["content"] for choice in answer.json()["choices"]])
    return texts


async def let_loose(url: str, golden: list[list[str]]) -> Counter[str]:
    seen: Counter[str] = Counter()
    until_s = time.monotonic() + SECONDS
    async with asyncio.TaskGroup() as clients:
        for seed in range(NUM_CLIENTS):
            clients.create_task(Client(url, seed, seen).run(until_s))
        while time.monotonic() < until_s:
            assert await golden_answers(url) == golden
            seen["golden"] += 1
    await leave_together(url)
    return seen


async def leave_together(url: str) -> None:
    """Long calls, some running and the others waiting, that nobody wants any more."""
    body = {"model": MODEL, "prompt": "Tell", "max_tokens": 1000, "ignore_eos": True, "stream": True}
    connections = [await Connection.to(url) for _ in range(NUM_CLIENTS)]
    for connection in connections:
        connection.writer.write(as_bytes(Call("/v1/completions", body)))
    async with asyncio.timeout(ANSWERED_WITHIN_S):
        await connections[0].reader.readuntil(b"data: ")
    for index, connection in enumerate(connections):
        connection.leave(random.Random(index))


def test_nothing_is_left_of_them_and_nobody_else_notices():
    with ServerProcess(*FLAGS) as server:
        before = asyncio.run(golden_answers(server.url))
        seen = asyncio.run(let_loose(server.url, before))
        for gauge in ("requests_running", "requests_waiting", "requests_swapped", "waiting_tokens", "kv_blocks_used"):
            server.wait_for_gauge(f"headrace_{gauge}", 0)
        assert asyncio.run(golden_answers(server.url)) == before
        assert seen["golden"] > 0
        assert all(seen[kind] > NUM_CLIENTS / 2 for kind in ("200", "400", "left")), seen
        server.terminate()
        assert server.wait(30) == 0
        assert "Traceback" not in "".join(server.log)
