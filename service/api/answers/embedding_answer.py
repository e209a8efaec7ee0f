"""The engine requests of one call for embeddings, and its answer."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

import orjson
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from service.api.answers.answering import ignored_header
from service.api.call_trace import CallTrace
from service.api.calls.embedding_call import EmbeddingCall
from service.api.context import ApiContext
from service.api.disconnect import ClientGone, run_unless_disconnected
from service.api.error_responses import nobody_there
from service.core.embedding import Vector
from service.core.events import FinalEvent, Outcome, PooledEvent
from service.core.request import Request
from service.engine.async_engine import AsyncEngine
from service.engine.streams import RequestStream
from service.errors import Overloaded, Unavailable

_MOST_TRACED = 128
"""Inputs of a call whose times are kept for its trace: each takes some hundred bytes."""
_WHOLE_BYTES = 64 * 1024
"""A longer answer is sent vector by vector."""
_BYTES_A_NUMBER = 22


class EmbeddingRun:
    """One engine request per input, with at most `most_at_once` of them in the engine at a time. Event-loop thread. The
    caller calls `close` in a `finally`.

    note_end(index, event): called once per input, when its request ends; event None: `close` aborted it, or it was not
    yet submitted. num_cached_tokens: of all inputs so far.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        requests: Sequence[Request],
        most_at_once: int,
        note_end: Callable[[int, FinalEvent | None], None],
    ) -> None:
        self._engine = engine
        self._requests = requests
        self._most_at_once = most_at_once
        self._note_end = note_end
        self._news = asyncio.Event()
        self._streams: dict[int, RequestStream] = {}
        self._num_submitted = 0
        self._vectors: dict[int, Vector] = {}
        self.num_cached_tokens = 0

    async def collect(self) -> list[Vector]:
        """The inputs' pooled hidden states, in the order of the inputs. Raises the error of a request that was refused
        or failed."""
        self._submit()
        while self._streams:
            await self._news.wait()
            self._news.clear()
            for index, stream in [each for each in self._streams.items() if each[1].has_events]:
                self._read(index, stream)
            self._submit()
        return [self._vectors[index] for index in range(len(self._requests))]

    def close(self) -> bool:
        """Abort the requests that have not ended. Idempotent; returns whether there were any."""
        aborted = bool(self._streams)
        for index in self._streams:
            self._engine.abort(self._requests[index].request_id)
        for index in (*self._streams, *range(self._num_submitted, len(self._requests))):
            self._note_end(index, None)
        self._streams.clear()
        self._num_submitted = len(self._requests)
        return aborted

    def _submit(self) -> None:
        """Submit as many inputs as there is room for. Where the engine would refuse an input because of others of this
        call, it waits."""
        while self._num_submitted < len(self._requests) and len(self._streams) < self._most_at_once:
            try:
                stream = self._engine.submit(self._requests[self._num_submitted])
            except Overloaded:
                if not self._streams:
                    raise
                return
            self._streams[self._num_submitted] = stream
            self._num_submitted += 1
            stream.read_by(self._news.set)

    def _read(self, index: int, stream: RequestStream) -> None:
        for event in stream.take():
            if isinstance(event, PooledEvent):
                self._vectors[index] = event.vector
            elif isinstance(event, FinalEvent):
                del self._streams[index]
                self._note_end(index, event)
                self.num_cached_tokens += event.stats.num_cached_tokens
                if event.error is not None:
                    raise event.error
                if event.outcome is Outcome.ABORTED:
                    raise Unavailable("The server aborted the request.", code="aborted")


async def answer_embedding(http: HttpRequest, call: EmbeddingCall, context: ApiContext) -> Response:
    """Submit the call and wait for all of it. Raises the error of an input that was refused or failed."""
    engine = call.served.engine
    trace = CallTrace(call.head, call.model, call.requests[:_MOST_TRACED])
    context.traces.add(trace)

    def note_end(index: int, event: FinalEvent | None) -> None:
        if index < _MOST_TRACED:
            trace.note_end(index, event)

    # Half of the seats, so that other calls find some beside a large one.
    run = EmbeddingRun(engine, call.requests, max(1, engine.max_num_seqs // 2), note_end)
    try:
        pooled = await run_unless_disconnected(http.receive, run.collect())
    except ClientGone:
        _close(run, context, "client_disconnected")
        return nobody_there()
    except BaseException:
        _close(run, context, "call_failed")
        raise
    return _response(call, pooled, run.num_cached_tokens)


def _close(run: EmbeddingRun, context: ApiContext, reason: str) -> None:
    if run.close():
        context.recorder.record_abort(reason)


def _response(call: EmbeddingCall, pooled: Sequence[Vector], num_cached_tokens: int) -> Response:
    headers, parts = ignored_header(call.ignored), _parts(call, pooled, num_cached_tokens)
    if len(pooled) * call.embedder.size * _BYTES_A_NUMBER <= _WHOLE_BYTES:
        return Response(b"".join(parts), headers=headers, media_type="application/json")
    return StreamingResponse(_in_turns(parts), headers=headers, media_type="application/json")


async def _in_turns(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yields to other tasks between two vectors."""
    for part in parts:
        yield part
        await asyncio.sleep(0)


def _parts(call: EmbeddingCall, pooled: Sequence[Vector], num_cached_tokens: int) -> Iterator[bytes]:
    """The answer's JSON (protocol/embeddings.py), one part per vector."""
    head = {"id": call.head.call_id, "object": "list", "created": call.head.created, "model": call.model}
    yield orjson.dumps(head)[:-1] + b',"data":['
    for index, each in enumerate(pooled):
        vector = call.embedder.finished(each, call.size)
        comma = b"," if index else b""
        yield comma + b'{"object":"embedding","index":%d,"embedding":%s}' % (index, _written(vector, call.is_base64))
    num_tokens = sum(request.num_prompt_tokens for request in call.requests)
    usage = {
        "prompt_tokens": num_tokens,
        "total_tokens": num_tokens,
        "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
    }
    yield b'],"usage":' + orjson.dumps(usage) + b"}"


def _written(vector: Vector, is_base64: bool) -> bytes:
    """As base64 of fp32, or as numbers that are exactly the same fp32 values."""
    if is_base64:
        return b'"' + b64encode(vector.tobytes()) + b'"'
    return orjson.dumps(vector.astype("f8"), option=orjson.OPT_SERIALIZE_NUMPY)
