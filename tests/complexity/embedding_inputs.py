"""Worst inputs of /v1/embeddings: many texts, and the vectors that they become."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from starlette.types import Message

from service.api.answers.embedding_answer import EmbeddingRun, _parts
from service.api.call_head import CallHead
from service.api.calls.embedding_call import EmbeddingCall, prepare_embedding
from service.api.calls.wire_parsing import parse
from service.api.context import ApiContext
from service.api.serving_state import ServedModel
from service.config import ApiConfig
from service.core.embedding import EmbedderConfig, Vector
from service.core.events import FinalEvent, Outcome, PooledEvent
from service.core.request import Request
from service.engine.async_engine import AsyncEngine
from service.engine.live_requests import stats_of_lost
from service.engine.streams import RequestStream
from service.errors import InvalidRequest
from service.protocol.embeddings import EmbeddingRequest
from service.text.tokenizer import Tokenizer
from tests.complexity.growth import Work, WorstInput
from tests.text import tiny_tokenizers

_CONFIG = ApiConfig(("m",))
_TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())
_EMBEDDER = EmbedderConfig("last", True, 1024)
_VECTOR: Vector = np.linspace(-1, 1, _EMBEDDER.size, dtype=np.float32)
_SEATS = 128


class _Engine:
    """Takes everything, and answers when the event loop comes to it."""

    def check_accepts(self) -> None:
        """It does."""

    def submit(self, request: Request) -> RequestStream:
        stream = RequestStream()
        asyncio.get_running_loop().call_soon(self._answer, request, stream)
        return stream

    def _answer(self, request: Request, stream: RequestStream) -> None:
        stream.events += [PooledEvent(_VECTOR), FinalEvent(Outcome.FINISHED, stats_of_lost(request, 0.0))]
        stream.wake()


class _Texts:
    """Works at once."""

    async def run_prompt(self, receive: object, num_characters: int, work: Callable[[Callable[[], None]], Any]) -> Any:
        return work(lambda: None)


async def _receive() -> Message:
    raise AssertionError("the body has been read")


def _prepared(body: dict[str, Any]) -> EmbeddingCall:
    served = ServedModel(
        cast(AsyncEngine, _Engine()), _TOKENIZER, None, "m", 0, 2**22, _TOKENIZER.num_tokens, frozenset()
    )
    context = cast(ApiContext, SimpleNamespace(config=_CONFIG, texts=_Texts()))
    fields, head = parse(EmbeddingRequest, body), CallHead("embd-1", 0, 0.0, "")
    return asyncio.run(prepare_embedding(fields, head, _receive, served, _EMBEDDER, context))


def _refused(n: int) -> Work:
    """More texts than a call may have."""
    body = {"input": ["a"] * n}

    def work() -> None:
        try:
            _prepared(body)
        except InvalidRequest:
            return
        raise AssertionError("too many")

    return work


def _answered(n: int) -> Work:
    """All that a call asks for, from the engine to the body."""
    call = _prepared({"input": [[1]] * n})

    async def answer() -> None:
        run = EmbeddingRun(call.served.engine, call.requests, _SEATS, lambda index, event: None)
        for _ in _parts(call, await run.collect(), run.num_cached_tokens):
            pass

    return lambda: asyncio.run(answer())


EMBEDDING_INPUTS = [
    WorstInput(
        "embeddings: many texts",
        ("protocol/embeddings.py", "api/calls/embedding_call.py", "api/calls/prompt_ids.py"),
        lambda n: lambda: _prepared({"input": ["a b"] * n, "user": "x"}),
        500,
        _CONFIG.max_inputs_per_call,
        "pool",
    ),
    WorstInput(
        "embeddings: far too many texts",
        ("protocol/embeddings.py", "api/calls/embedding_call.py"),
        _refused,
        100_000,
        _CONFIG.max_body_bytes // 4,
        "loop",
    ),
    WorstInput(
        "embeddings: many vectors",
        ("api/answers/embedding_answer.py",),
        _answered,
        100,
        _CONFIG.max_inputs_per_call,
        "stream",
    ),
]
