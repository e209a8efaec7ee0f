"""Clients of a soak: valid and invalid calls, in every way that a client may behave. Broken rules are recorded."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from loadtest.answer_rules import BrokenRuleError, check_answer
from loadtest.http_response import BadResponseError
from loadtest.soak.hostile_calls import MODEL, WORDS, Call, draw_call
from loadtest.soak.raw_connection import RawConnection, get_bytes, post_bytes
from loadtest.strict_http import Answer

ANSWERED_WITHIN_S = 120.0
_EXPECTED = {200, 400, 404, 413, 503}
_MAX_FAULTS_KEPT = 20
_UNREAD_BUFFER = 4096
_PAUSE_AT_THE_END_S = 0.02
_SCRAPES = ("/metrics", "/v1/models", "/health", "/ready", "/version", "/v1/requests/x/trace", "/openapi.json", "/none")
_NONSENSE = (
    b"nonsense\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
    b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)

Deed = Callable[[], Awaitable[None]]


class Traffic:
    """State shared by the clients of one server. Event-loop thread only.

    seen: counts of statuses and of what clients did. num_faults: number of broken rules; `faults` describes the first.
    is_ending: the server was told to shut down, so it may refuse connections.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.seen: Counter[str] = Counter()
        self.num_faults = 0
        self.faults: list[str] = []
        self.is_ending = False

    def note_fault(self, words: str) -> None:
        self.num_faults += 1
        if len(self.faults) < _MAX_FAULTS_KEPT:
            self.faults.append(words)


class Client:
    """Does random things one after another, as its seed decides."""

    def __init__(self, traffic: Traffic, seed: str, *, only_large: bool = False) -> None:
        """only_large: only calls that take much memory. With several such clients the peak is reached early, and later
        growth beyond it is a leak."""
        self._traffic = traffic
        self._chance = random.Random(seed)
        self._only_large = only_large

    async def run(self, until_s: float) -> None:
        """Run until this time on the monotonic clock; the last call is finished. If cancelled, it leaves at once."""
        every = [self._wait] * 4 + [self._leave] * 2
        every += [self._drip, self._pipeline, self._read_slowly, self._never_read, self._stall, self._scrape]
        every += [self._tokenize, self._send_much, self._send_nonsense, self._fill]
        if self._only_large:
            every = [self._tokenize, self._send_much, self._fill, self._stall, self._never_read, self._wait]
        while time.monotonic() < until_s:
            await self._do(self._chance.choice(every))

    async def run_to_the_end(self) -> None:
        """Make ordinary calls until the server refuses connections."""
        try:
            while True:
                await self._do(self._wait)
                await asyncio.sleep(_PAUSE_AT_THE_END_S)
        except ConnectionError:  # may be a reset if the listener closes at this moment
            if not self._traffic.is_ending:
                raise
            self._traffic.seen["refused at the end"] += 1

    async def _do(self, deed: Callable[[RawConnection], Awaitable[None]]) -> None:
        small = deed == self._never_read
        connection = await RawConnection.to(self._traffic.port, _UNREAD_BUFFER if small else None)
        is_late = self._traffic.is_ending
        self._traffic.seen[deed.__name__.strip("_").replace("_", " ")] += 1
        try:
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                await deed(connection)
        except TimeoutError:
            self._traffic.note_fault(f"{deed.__name__}: nothing within {ANSWERED_WITHIN_S:g} s")
        except (ConnectionError, asyncio.IncompleteReadError) as fault:
            if not is_late:
                self._traffic.note_fault(f"{deed.__name__}: {fault!r}")
        finally:
            connection.leave(self._chance)

    async def _wait(self, connection: RawConnection) -> None:
        await self._ask(connection, draw_call(self._chance))

    async def _read_slowly(self, connection: RawConnection) -> None:
        await self._ask(connection, draw_call(self._chance), pause_s=0.02)

    async def _drip(self, connection: RawConnection) -> None:
        call = draw_call(self._chance)
        data = post_bytes(*call)
        step = max(1, len(data) // 8)
        for start in range(0, len(data), step):
            connection.writer.write(data[start : start + step])
            await asyncio.sleep(self._chance.random() * 0.1)
        await self._read(connection, call)

    async def _pipeline(self, connection: RawConnection) -> None:
        calls = [draw_call(self._chance) for _ in range(4)]
        connection.writer.write(b"".join(post_bytes(*call) for call in calls))
        for call in calls[: self._chance.choice([1, 4])]:
            await self._read(connection, call)

    async def _leave(self, connection: RawConnection) -> None:
        """Disconnect within the headers, the body, the wait or the stream; or first half-close the sending side."""
        data = post_bytes(*draw_call(self._chance))
        sent = self._chance.choice([self._chance.randrange(1, 60), self._chance.randrange(60, len(data)), len(data)])
        connection.writer.write(data[:sent])
        if sent == len(data) and self._chance.random() < 0.6:
            if self._chance.random() < 0.3:
                connection.writer.write_eof()
            await connection.reader.read(self._chance.choice([1, 2000]))
        await asyncio.sleep(self._chance.choice([0, 0.01, 0.2]))

    async def _never_read(self, connection: RawConnection) -> None:
        body = {
            "model": MODEL,
            "prompt": "Tell",
            "max_tokens": 400,
            "n": 4,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        connection.writer.write(post_bytes("/v1/completions", {**body, "stream": self._chance.random() < 0.8}))
        await asyncio.sleep(self._chance.uniform(0.5, 4))

    async def _stall(self, connection: RawConnection) -> None:
        """Stop within a long body of known length."""
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.writer.write(head + b"Content-Length: 2000000\r\n\r\n" + b" " * self._chance.randrange(1, 500_000))
        await asyncio.sleep(self._chance.uniform(0.5, 4))

    async def _scrape(self, connection: RawConnection) -> None:
        for path in self._chance.sample(_SCRAPES, 3):
            connection.writer.write(get_bytes(path))
            await self._read(connection, path)

    async def _tokenize(self, connection: RawConnection) -> None:
        text = " ".join(self._chance.choices(WORDS, k=self._much()))
        await self._ask(connection, Call("/tokenize", {"model": MODEL, "prompt": text}))

    async def _send_much(self, connection: RawConnection) -> None:
        """Send a prompt, or a list of prompts, far longer than the context."""
        prompt: Any = " ".join(self._chance.choices(WORDS, k=self._much()))
        if self._chance.random() < 0.3:
            prompt = [self._chance.randrange(300) for _ in range(self._much())]
        await self._ask(connection, Call("/v1/completions", {"model": MODEL, "prompt": prompt, "max_tokens": 1}))

    def _much(self) -> int:
        is_large = self._only_large or self._chance.random() < 0.1
        return 100_000 if is_large else self._chance.choice([1, 200, 2000, 2000, 20_000])

    async def _fill(self, connection: RawConnection) -> None:
        """Ask for choices that together need most of the KV cache, so that other requests are preempted."""
        body = {"model": MODEL, "prompt": "Tell", "max_tokens": 60, "n": 6, "ignore_eos": True, "stream": True}
        await self._ask(connection, Call("/v1/completions", body))

    async def _send_nonsense(self, connection: RawConnection) -> None:
        connection.writer.write(self._chance.choice(_NONSENSE))
        connection.writer.write_eof()
        answer = await connection.answer()
        if answer is not None and answer.status < 400:
            self._traffic.note_fault(f"nonsense was answered with {answer.status}")

    async def _ask(self, connection: RawConnection, call: Call, pause_s: float = 0.0) -> None:
        connection.writer.write(post_bytes(*call))
        await self._read(connection, call, pause_s)

    async def _read(self, connection: RawConnection, asked: object, pause_s: float = 0.0) -> None:
        try:
            answer = await connection.answer(pause_s=pause_s)
            if answer is None:
                raise ConnectionResetError("closed without an answer")
            self._traffic.seen[str(answer.status)] += 1
            faults = {"overloaded", "shutting_down"} if self._traffic.is_ending else {"overloaded"}
            check_answer(answer, _EXPECTED, faults)
            _check_choices(answer)
        except (BadResponseError, BrokenRuleError) as fault:
            self._traffic.note_fault(f"{str(asked)[:1000]}: {fault}")


def _check_choices(answer: Answer) -> None:
    if answer.status != 200 or answer.headers["content-type"] != "application/json":
        return
    choices: Sequence[Any] = json.loads(answer.body).get("choices", ())
    if not all(choice["finish_reason"] for choice in choices):
        raise BrokenRuleError("a choice without finish_reason")
