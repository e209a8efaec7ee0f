"""One client process: waits for the common start, sends its share of the requests when they are due, and returns
the records.
"""

import asyncio
import dataclasses
import gc
import resource
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from loadtest.http_client import HttpClient
from loadtest.precise_timer import PreciseTimer
from loadtest.prompts import PATHS, BodyOptions, prompt_token_ids, request_body, stand_in_output_ids
from loadtest.stream_record import StreamRecord
from loadtest.trace import TraceRequest

_WARMUP_ID = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ClientShare:
    """The work of one client process.

    Each element of `streams` is a conversation or a single request; its requests are sent one after another. In an
    open loop these streams belong to this process alone. In a closed loop (`closed_loop_clients` > 0) every process has
    all streams, and a shared counter says which is next. `max_concurrency` limits requests in flight; 0: no limit.
    """

    base_url: str
    options: BodyOptions
    streams: tuple[tuple[TraceRequest, ...], ...]
    timeout_s: float
    closed_loop_clients: int = 0
    max_concurrency: int = 0
    connections_ahead: int = 0
    warmup_requests: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)


class WarmupFailedError(Exception):
    """A warm-up request failed."""


def run_client(
    share: ClientShare, pipe: Connection, take_next: Callable[[], int], count_finished: Callable[[], None]
) -> None:
    """Main function of the process.

    Protocol on `pipe`: sends `("ready", None)`, receives the start time, sends `("records", list[StreamRecord])`.
    Instead of either message it may send `("failed", text)`. `take_next` returns the index of the next stream in a
    closed loop; `count_finished` is called once per finished request.
    """
    try:
        _raise_open_file_limit()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            records = runner.run(_Client(share, take_next, count_finished).run(pipe))
        pipe.send(("records", records))
    except (WarmupFailedError, ValueError) as error:
        pipe.send(("failed", str(error)))
    except Exception:
        pipe.send(("failed", traceback.format_exc()))
    finally:
        pipe.close()


class _Client:
    def __init__(self, share: ClientShare, take_next: Callable[[], int], count_finished: Callable[[], None]) -> None:
        self._share = share
        self._take_next = take_next
        self._count_finished = count_finished
        self._path = PATHS[share.options.endpoint_type]
        self._http = HttpClient(share.base_url, share.headers)
        self._bodies = _bodies_ahead(share)
        self._records: list[StreamRecord] = []

    async def run(self, pipe: Connection) -> list[StreamRecord]:
        self._timer = PreciseTimer(asyncio.get_running_loop())
        self._limit = _limit(self._share.max_concurrency)
        try:
            await self._warm_up()
            await self._http.connect_ahead(self._share.connections_ahead)
            gc.collect()
            gc.freeze()
            gc.disable()
            start = await _common_start(pipe)
            await (self._closed_loop(start) if self._share.closed_loop_clients else self._open_loop(start))
        finally:
            gc.enable()
            self._timer.close()
            self._http.close()
        return self._records

    async def _warm_up(self) -> None:
        if not self._share.streams:
            return
        pattern = self._share.streams[0][0]
        for i in range(self._share.warmup_requests):
            record = await self._send(dataclasses.replace(pattern, request_id=_WARMUP_ID + i), [])
            if not record.succeeded:
                raise WarmupFailedError(f"warm-up request failed: {record.error}")

    async def _open_loop(self, start: float) -> None:
        async with asyncio.TaskGroup() as group:
            for stream in sorted(self._share.streams, key=lambda stream: stream[0].arrival_s):
                due = start + stream[0].arrival_s
                await self._timer.sleep_until(due)
                group.create_task(self._run_stream(stream, due))

    async def _closed_loop(self, start: float) -> None:
        await self._timer.sleep_until(start)
        async with asyncio.TaskGroup() as group:
            for _ in range(self._share.closed_loop_clients):
                group.create_task(self._closed_loop_client())

    async def _closed_loop_client(self) -> None:
        while (i := self._take_next()) < len(self._share.streams):
            await self._run_stream(self._share.streams[i], time.perf_counter())

    async def _run_stream(self, stream: Sequence[TraceRequest], due: float) -> None:
        history: list[int] = []
        failed_turn = ""
        for request in stream:
            if request is not stream[0]:
                due = time.perf_counter() + request.think_time_s
            if failed_turn:
                record = StreamRecord(request.request_id, due, due, due, error=failed_turn)
            else:
                await self._timer.sleep_until(due)
                async with self._limit:
                    record = await self._send(request, history, due)
                failed_turn = "" if record.succeeded else "skipped: an earlier turn failed"
            self._records.append(record)
            self._count_finished()

    async def _send(self, request: TraceRequest, history: list[int], due: float | None = None) -> StreamRecord:
        """Send one request. In a conversation, extend `history` by its prompt and answer."""
        now = time.perf_counter()
        record = StreamRecord(request.request_id, now if due is None else due, requested_tokens=request.output_len)
        body = self._bodies.get(request.request_id) or request_body(request, self._share.options, history)
        await self._http.stream(self._path, body, record, self._share.timeout_s)
        if request.conversation_id is not None:
            _extend_history(history, request, record, self._share.options)
        record.token_ids = []
        return record


def _extend_history(history: list[int], request: TraceRequest, record: StreamRecord, options: BodyOptions) -> None:
    history.extend(prompt_token_ids(request, options))
    history.extend(record.token_ids or stand_in_output_ids(request, options))


def _bodies_ahead(share: ClientShare) -> dict[int, bytes]:
    lone = (stream[0] for stream in share.streams if stream[0].conversation_id is None)
    return {request.request_id: request_body(request, share.options) for request in lone}


def _limit(max_concurrency: int) -> AbstractAsyncContextManager[Any]:
    return asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()


async def _common_start(pipe: Connection) -> float:
    pipe.send(("ready", None))
    return float(await asyncio.to_thread(pipe.recv))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def _raise_open_file_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
