"""A stub server with known timings and no engine: the load generator is tested and calibrated against it.

It answers /v1/completions and /v1/chat/completions with pre-made chunks: the first token `ttft_s` after the request
arrived, each further chunk `itl_s` after the one before, on an absolute schedule. With both 0 it writes as fast as the
connection accepts. A request's model name may ask for a fault: `stub-503`, `stub-disconnect`, `stub-error`,
`stub-hang`.
"""

import argparse
import asyncio
import contextlib
import functools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from loadtest.precise_timer import PreciseTimer


@dataclass(frozen=True, slots=True)
class StubTimings:
    """tokens_per_chunk: tokens coalesced into one chunk. chunks_per_write: chunks in one write to the socket."""

    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens_per_chunk: int = 1
    chunks_per_write: int = 1


FAULT_AFTER_CHUNKS = 3
VOCAB_SIZE = 1000


class _StubConnection(asyncio.Protocol):
    def __init__(self, timings: StubTimings, timer: PreciseTimer) -> None:
        self._timings = timings
        self._timer = timer
        self._received = b""
        self._pieces: Iterator[bytes] = iter(())
        self._due = 0.0
        self._paused = False
        self._waiting_for_resume = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._waiting_for_resume:
            self._waiting_for_resume = False
            self._write_next(self._pieces)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self._received[:head_end].lower()
        length = int(head.split(b"content-length:")[1].split(b"\r\n")[0]) if b"content-length:" in head else 0
        if len(self._received) < head_end + 4 + length:
            return
        body = self._received[head_end + 4 : head_end + 4 + length]
        self._received = self._received[head_end + 4 + length :]
        self._answer(head.split(b" ")[1], body, now)

    def _answer(self, path: bytes, body: bytes, now: float) -> None:
        if path == b"/v1/models":
            self._write_json(200, {"data": [{"id": "stub", "vocab_size": VOCAB_SIZE}]})
        elif path not in (b"/v1/completions", b"/v1/chat/completions"):
            self._write_json(200, {})
        else:
            self._start_stream(json.loads(body), path == b"/v1/chat/completions", now)

    def _write_json(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._transport.write(head.encode() + body)

    def _start_stream(self, request: dict[str, Any], chat: bool, now: float) -> None:
        if request["model"] == "stub-503":
            self._write_json(503, {"error": {"message": "full", "code": "queue_full"}})
            return
        if request["model"] == "stub-hang":
            return
        self._pieces = _pieces(request, chat, self._timings)
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        self._due = now + self._timings.ttft_s
        self._timer.call_at(self._due, functools.partial(self._write_next, self._pieces))

    def _write_next(self, pieces: Iterator[bytes]) -> None:
        if self._transport.is_closing():
            return
        if self._paused:
            self._waiting_for_resume = True
            return
        piece = next(pieces, None)
        if piece is None:
            return
        if piece == b"":
            self._transport.close()
            return
        self._transport.write(piece)
        self._due += self._timings.itl_s
        if self._timings.itl_s:
            self._timer.call_at(self._due, functools.partial(self._write_next, pieces))
        else:
            asyncio.get_running_loop().call_soon(self._write_next, pieces)


def _pieces(request: dict[str, Any], chat: bool, timings: StubTimings) -> Iterator[bytes]:
    """An answer's writes, one piece each. The last token comes with the end. An empty piece closes the connection."""
    fault = request["model"].removeprefix("stub-")
    num_tokens = _num_tokens(request)
    num_chunks = max(1, -(-num_tokens // timings.tokens_per_chunk))
    middle = _http_chunk(_event(request, chat, timings.tokens_per_chunk, None))
    for _ in range(FAULT_AFTER_CHUNKS if fault in ("disconnect", "error") else 0):
        yield middle
    if fault == "disconnect":
        yield b""
    if fault == "error":
        yield _http_chunk(b'data: {"error": {"code": "engine_failed"}}\n\ndata: [DONE]\n\n') + b"0\r\n\r\n"
        return
    written = 0
    while written < num_chunks - 1:
        count = min(timings.chunks_per_write, num_chunks - 1 - written)
        yield middle * count
        written += count
    rest = num_tokens - written * timings.tokens_per_chunk
    yield (
        _http_chunk(_event(request, chat, rest, "length"))
        + _http_chunk(_usage_event(request))
        + _http_chunk(b"data: [DONE]\n\n")
        + b"0\r\n\r\n"
    )


def _event(request: dict[str, Any], chat: bool, num_tokens: int, finish_reason: str | None) -> bytes:
    text = " stub" * num_tokens
    choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": finish_reason}
    choice.update({"delta": {"content": text}} if chat else {"text": text})
    if request.get("return_token_ids"):
        choice["token_ids"] = [7] * num_tokens
    content = {
        "id": "cmpl-0123456789abcdef0123456789abcdef",
        "object": "text_completion",
        "created": 1700000000,
        "model": request["model"],
        "choices": [choice],
    }
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _num_tokens(request: dict[str, Any]) -> int:
    return int(request.get("max_completion_tokens") or request["max_tokens"])


def _usage_event(request: dict[str, Any]) -> bytes:
    if not (request.get("stream_options") or {}).get("include_usage"):
        return b": no usage asked for\n\n"
    prompt = request.get("prompt")
    usage = {
        "prompt_tokens": len(prompt) if isinstance(prompt, list) else 1,
        "completion_tokens": _num_tokens(request),
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    return b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n"


def _http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def serve(timings: StubTimings, port: int) -> None:
    """Serves on 127.0.0.1 until cancelled. Prints the port as its first line; port 0 takes a free one."""
    loop = asyncio.get_running_loop()
    timer = PreciseTimer(loop)
    server = await loop.create_server(lambda: _StubConnection(timings, timer), "127.0.0.1", port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextlib.contextmanager
def running_stub(*options: str) -> Iterator[str]:
    """A stub server in its own process, with these command line options. Yields its base URL."""
    command = [sys.executable, "-m", "loadtest.stub_server", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def main() -> None:
    """`python -m loadtest.stub_server --ttft-ms 50 --itl-ms 10`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=0.0)
    parser.add_argument("--itl-ms", type=float, default=0.0)
    parser.add_argument("--tokens-per-chunk", type=int, default=1)
    parser.add_argument("--chunks-per-write", type=int, default=1)
    args = parser.parse_args()
    timings = StubTimings(args.ttft_ms / 1e3, args.itl_ms / 1e3, args.tokens_per_chunk, args.chunks_per_write)
    try:
        import uvloop
    except ImportError:
        asyncio.run(serve(timings, args.port))
    else:
        uvloop.run(serve(timings, args.port))


if __name__ == "__main__":
    main()
