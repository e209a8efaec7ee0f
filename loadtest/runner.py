"""Runs a load plan with several client processes and collects their records."""

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from ctypes import c_long
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

from loadtest.client_process import ClientShare, run_client
from loadtest.prompts import BodyOptions
from loadtest.stream_record import StreamRecord
from loadtest.trace import TraceRequest

_START_DELAY_S = 0.05
_POLL_S = 0.1


class LoadError(Exception):
    """The run failed: a client process failed, or the server did not answer the warm-up."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to send where.

    Open loop: each request is sent at its `arrival_s`. `max_concurrency` (0: no limit) delays due requests while that
    many are in flight; the delay counts as latency. Closed loop (`closed_loop`): `max_concurrency` clients, each
    sending its next request when its last one has ended; a request is due when it is sent.
    """

    base_url: str
    requests: tuple[TraceRequest, ...]
    options: BodyOptions
    closed_loop: bool = False
    max_concurrency: int = 0
    num_processes: int = 1
    timeout_s: float = 600.0
    warmup_requests: int = 1
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.requests:
            raise ValueError("nothing to send")
        if self.closed_loop and self.max_concurrency < 1:
            raise ValueError("a closed loop needs max_concurrency, its number of clients")
        if self.num_processes < 1:
            raise ValueError(f"num_processes must be at least 1, not {self.num_processes}")


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """records: by request id. The run started at `start_s`; the last request ended `duration_s` later."""

    records: list[StreamRecord]
    start_s: float
    duration_s: float


def default_num_processes() -> int:
    """Half of the cores, at most 8: the other half is left to a server on the same machine."""
    return max(1, min(8, (os.cpu_count() or 1) // 2))


def run_load(
    plan: LoadPlan,
    on_progress: Callable[[int], None] = lambda finished: None,
    around: AbstractContextManager[object] | None = None,
) -> LoadOutcome:
    """Run the plan to its end. on_progress: called about ten times per second with the number of finished requests.

    around: entered when every client is ready and warmed up, left when the last answer is there.
    Client processes are spawned, so a script that calls this needs the `if __name__ == "__main__"` guard.
    Raises LoadError. The client processes are ended in any case.
    """
    context = multiprocessing.get_context("spawn")
    shares = split(plan)
    next_stream = context.Value(c_long, 0)
    finished: Any = context.Array(c_long, len(shares), lock=False)
    clients: list[_ClientHandle] = []
    try:
        for i, share in enumerate(shares):
            clients.append(_start_client(context, i, share, next_stream, finished))
        for client in clients:
            _receive(client, "ready", lambda: None)
        with around or nullcontext():
            start_s = time.perf_counter() + _START_DELAY_S
            for client in clients:
                client.pipe.send(start_s)
            records = [
                record
                for client in clients
                for record in _receive(client, "records", lambda: on_progress(sum(finished)))
            ]
    finally:
        for client in clients:
            client.end()
    on_progress(len(records))
    records.sort(key=lambda record: record.request_id)
    return LoadOutcome(records, start_s, max(record.end_s for record in records) - start_s)


def split(plan: LoadPlan) -> list[ClientShare]:
    """One share per client process. Conversations stay whole; a concurrency limit is divided among the processes."""
    streams = _streams(plan.requests)
    wanted = plan.num_processes if not plan.max_concurrency else min(plan.num_processes, plan.max_concurrency)
    num = min(wanted, len(streams))
    return [_share(plan, streams, index, num) for index in range(num)]


def _share(plan: LoadPlan, streams: Sequence[tuple[TraceRequest, ...]], index: int, num: int) -> ClientShare:
    own = tuple(streams if plan.closed_loop else streams[index::num])
    concurrency = plan.max_concurrency // num + (index < plan.max_concurrency % num)
    at_once = all(stream[0].arrival_s == 0 for stream in own)
    together = min(concurrency or len(own), len(own))
    return ClientShare(
        base_url=plan.base_url,
        options=plan.options,
        streams=own,
        timeout_s=plan.timeout_s,
        closed_loop_clients=concurrency if plan.closed_loop else 0,
        max_concurrency=0 if plan.closed_loop else concurrency,
        connections_ahead=together if at_once else 0,
        warmup_requests=plan.warmup_requests if index == 0 else 0,
        headers=plan.headers,
    )


def _streams(requests: Sequence[TraceRequest]) -> list[tuple[TraceRequest, ...]]:
    ordered = sorted(requests, key=lambda request: (request.stream_id, request.turn))
    grouped = itertools.groupby(ordered, key=lambda request: request.stream_id)
    streams = [tuple(group) for _, group in grouped]
    return sorted(streams, key=lambda stream: (stream[0].arrival_s, stream[0].request_id))


@dataclass(frozen=True, slots=True)
class _ClientHandle:
    process: BaseProcess
    pipe: Connection

    def end(self) -> None:
        self.pipe.close()
        self.process.join(1.0)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join()


def _start_client(
    context: SpawnContext, index: int, share: ClientShare, next_stream: Any, finished: Any
) -> _ClientHandle:
    ours, theirs = context.Pipe()
    process = context.Process(target=_client_main, args=(share, theirs, next_stream, finished, index), daemon=True)
    process.start()
    theirs.close()
    return _ClientHandle(process, ours)


def _client_main(share: ClientShare, pipe: Connection, next_stream: Any, finished: Any, index: int) -> None:
    def take_next() -> int:
        with next_stream.get_lock():
            taken = int(next_stream.value)
            next_stream.value = taken + 1
        return taken

    def count_finished() -> None:
        finished[index] += 1

    run_client(share, pipe, take_next, count_finished)


def _receive(client: _ClientHandle, expected: str, while_waiting: Callable[[], None]) -> Any:
    try:
        while not client.pipe.poll(_POLL_S):
            while_waiting()
        kind, content = client.pipe.recv()
    except (EOFError, OSError) as error:
        raise LoadError("a client process died") from error
    if kind != expected:
        raise LoadError(str(content))
    return content
