"""CPU microseconds of a streamed call on the event loop, without sockets and engine: to come in, per frame, to end.

    python -m loadtest.stream_cost [--streams 256] [--rounds 12]

The whole app behind its HTTP protocol, on connections that only count writes. The benchmark itself puts tokens into the
streams, six per frame. Times are CPU times of the thread, the minimum over many measurements: they repeat within a few
per cent even on a busy machine. A real server adds the kernel's cost per write and per connection.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson
import uvloop
from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from service.api.app import create_app
from service.api.serving_state import GenerationDefaults, ServedModel, ServingState
from service.config import ApiConfig, ConnectionLimits, ListenAddress
from service.core.clock import MonotonicClock
from service.core.events import FinalEvent, Outcome, TokenEvent
from service.core.request import FinishReason, Request
from service.core.stats import EngineSnapshot, RequestStats
from service.engine.async_engine import AsyncEngine
from service.engine.streams import RequestStream
from service.http.protocol import bounded_protocol
from service.http.server import HttpServer
from service.metrics.instruments import Instruments
from service.metrics.recorder import Recorder
from service.process.interpreter import GC_THRESHOLDS
from service.storage.storage import Storage
from service.text.dummy_tokenizer import dummy_tokenizer

VOCAB_SIZE = 32_000
NUM_PROMPT_TOKENS = 272
FRAMES_A_ROUND = 30
TOKENS_A_FRAME = 6
_STATS = RequestStats(NUM_PROMPT_TOKENS, 0, 180, 1, 180, 0.0, 0.0, 0.0, 1.0, 0)
_MOST_TURNS = 10_000


class HandFedEngine:
    """Accepts every request. The benchmark puts tokens into the streams."""

    def __init__(self) -> None:
        self.streams: list[RequestStream] = []
        self.snapshot = EngineSnapshot(total_blocks=1_000_000, block_size=16)

    def check_accepts(self, num_requests: int = 1) -> None:
        pass

    def submit(self, request: Request) -> RequestStream:
        self.streams.append(RequestStream())
        return self.streams[-1]

    def abort(self, request_id: str) -> None:
        pass


class CountingTransport:
    """Accepts all writes at once, and counts them."""

    def __init__(self) -> None:
        self.num_writes = 0
        self._is_closing = False

    def write(self, data: bytes) -> None:
        self.num_writes += 1

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self._is_closing = True

    abort = close

    def pause_reading(self) -> None:
        pass

    resume_reading = pause_reading

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default


class Bench:
    """seconds: part -> CPU seconds per stream, one entry per measurement."""

    def __init__(self, num_streams: int) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self._num_streams = num_streams
        self._engine = HandFedEngine()
        self._chance = random.Random(0)
        state, registry = ServingState(), CollectorRegistry()
        state.set_ready(_served_model(self._engine))
        app = create_app(
            state,
            ApiConfig(served_model_names=("m",)),
            Recorder(Instruments(registry)),
            registry,
            Storage(Path("unused"), 0),
        )
        self._config = HttpServer(app, ListenAddress()).config
        self._config.load()
        self._make_protocol = bounded_protocol(ConnectionLimits(max_connections=10 * num_streams))

    async def round(self) -> None:
        """All streams come in, get their frames, and end, all streams together in each part."""
        bodies = [self._request() for _ in range(self._num_streams)]
        transports: list[CountingTransport] = []
        protocols: list[Any] = []
        self._engine.streams.clear()

        def come_in() -> None:
            for body in bodies:
                transports.append(CountingTransport())
                protocols.append(self._make_protocol(self._config, ServerState(), {}, asyncio.get_running_loop()))
                protocols[-1].connection_made(transports[-1])
                protocols[-1].data_received(body)

        await self._time("come in", come_in, lambda: all(t.num_writes for t in transports))
        for _ in range(FRAMES_A_ROUND):
            await self._frame(transports[-1])
        last = TokenEvent(0, 700, FinishReason.LENGTH), FinalEvent(Outcome.FINISHED, _STATS)
        ends = [[500, 600, *last] for _ in transports]
        await self._time("end", lambda: self._put(ends), lambda: not any(p.tasks for p in protocols))
        for protocol in protocols:
            protocol.connection_lost(None)
        await asyncio.sleep(0.01)

    async def _frame(self, last: CountingTransport) -> None:
        num_written = last.num_writes
        ids = [self._ids(TOKENS_A_FRAME) for _ in self._engine.streams]
        await self._time("frame", lambda: self._put(ids), lambda: last.num_writes > num_written)

    async def _time(self, part: str, act: Callable[[], None], is_done: Callable[[], bool]) -> None:
        began_s = time.thread_time()
        act()
        for _ in range(_MOST_TURNS):
            if is_done():
                break
            await asyncio.sleep(0)
        self.seconds[part].append((time.thread_time() - began_s) / self._num_streams)
        assert is_done()

    def _put(self, events: list[Any]) -> None:
        for stream, of_stream in zip(self._engine.streams, events, strict=True):
            stream.events += of_stream
            stream.wake()

    def _ids(self, count: int) -> list[int]:
        return [self._chance.randrange(300, VOCAB_SIZE) for _ in range(count)]

    def _request(self) -> bytes:
        body = orjson.dumps(
            {
                "model": "m",
                "prompt": self._ids(NUM_PROMPT_TOKENS),
                "max_tokens": 180,
                "temperature": 0,
                "ignore_eos": True,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        )
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nUser-Agent: x\r\n"
        return head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def _served_model(engine: HandFedEngine) -> ServedModel:
    return ServedModel(
        engine=cast(AsyncEngine, engine),
        tokenizer=dummy_tokenizer(VOCAB_SIZE),
        chat_template=None,
        root="m",
        created=0,
        max_model_len=8192,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=frozenset({2}),
        defaults=GenerationDefaults(),
        build={},
        grammars=None,
        clock=MonotonicClock(),
    )


async def _measure(num_streams: int, num_rounds: int) -> dict[str, list[float]]:
    bench = Bench(num_streams)
    await bench.round()
    bench.seconds.clear()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    for _ in range(num_rounds):
        await bench.round()
    return bench.seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=12)
    args = parser.parse_args()
    seconds = uvloop.run(_measure(args.streams, args.rounds))
    for part, each in seconds.items():
        print(f"{part:8} {1e6 * min(each):6.1f} us at best, {1e6 * statistics.median(each):6.1f} in the median")
    return 0


if __name__ == "__main__":
    sys.exit(main())
