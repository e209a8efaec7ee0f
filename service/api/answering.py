"""The two ways to answer a generation call: one JSON body, or a stream of frames."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from service.api.choice_text import Piece
from service.api.context import ApiContext
from service.api.disconnect import ClientGone, run_unless_disconnected
from service.api.error_responses import error_body, internal_error, nobody_there
from service.api.generation import CollectedChoice, Generation
from service.api.sse import DONE, TokenStreamResponse, data_frame
from service.errors import RequestError
from service.protocol.chat import ChatResponse
from service.protocol.completions import CompletionResponse

_logger = logging.getLogger(__name__)

_CHARACTERS_OF_A_LOGPROB = 8
"""Writing one takes as long as tokenizing so many characters."""


_NO_CHOICES = '"choices":[]'


async def answer_whole(
    http: Request,
    context: ApiContext,
    generation: Generation,
    ignored: Sequence[str],
    body: Callable[[list[CollectedChoice]], ChatResponse | CompletionResponse],
) -> Response:
    """Wait for all choices and answer with `body` of them; abort if the client leaves or anything fails."""
    reason = "call_failed"
    try:
        choices = await run_unless_disconnected(http.receive, generation.collect())
        num_characters = generation.num_logprobs * _CHARACTERS_OF_A_LOGPROB
        json = await context.texts.run(num_characters, lambda: written(body(choices)))
        return Response(json, headers=ignored_header(ignored), media_type="application/json")
    except ClientGone:
        reason = "client_disconnected"
        return nobody_there()
    finally:
        context.recorder.times.detokenize += generation.text_s
        if generation.close():
            context.recorder.record_abort(reason)


def written(answer: ChatResponse | CompletionResponse) -> str:
    """The answer's JSON. Choice by choice: each is one call during which no other thread runs, and a choice with all
    logprobs of a long prompt takes a tenth of a second."""
    around = answer.model_copy(update={"choices": []}).model_dump_json(exclude_unset=True)
    before, after = around.split(_NO_CHOICES, 1)  # no text holds it: its quotation marks are escaped
    choices = ",".join(choice.model_dump_json(exclude_unset=True) for choice in answer.choices)
    return f'{before}"choices":[{choices}]{after}'


def answer_stream(
    context: ApiContext,
    generation: Generation,
    ignored: Sequence[str],
    frames: Callable[[Piece], bytes],
    last_frame: Callable[[], bytes],
    num_logprobs: Callable[[Piece], int] | None = None,
) -> Response:
    """Stream `frames` of every piece, then `last_frame`; abort if the client leaves or does not read.

    num_logprobs: entries that a piece's frame writes, where they may be so many that they would hold up the event loop.
    """

    times = context.recorder.times

    def write(pieces: Sequence[Piece]) -> bytes:
        began_s = time.perf_counter()
        written = b"".join([frames(piece) for piece in pieces])
        times.sse += time.perf_counter() - began_s
        return written

    async def join(pieces: Sequence[Piece]) -> bytes:
        num_entries = 0 if num_logprobs is None else sum(map(num_logprobs, pieces))
        if not num_entries:
            return write(pieces)
        return await context.texts.run(num_entries * _CHARACTERS_OF_A_LOGPROB, lambda: write(pieces))

    def close(reason: str) -> None:
        times.detokenize += generation.text_s
        if generation.close():
            context.recorder.record_abort(reason)

    return TokenStreamResponse(
        _frames(generation, join, last_frame),
        close,
        times,
        keepalive_s=context.config.stream_keepalive_s,
        send_timeout_s=context.config.stream_send_timeout_s,
        headers=ignored_header(ignored),
    )


async def _frames(
    generation: Generation,
    join: Callable[[Sequence[Piece]], Awaitable[bytes]],
    last_frame: Callable[[], bytes],
) -> AsyncGenerator[bytes, None]:
    """Frames that are ready together go out together. An error becomes an event; [DONE] comes in any case."""
    try:
        async with aclosing(generation.pieces()) as batches:
            async for pieces in batches:
                yield await join(pieces)
        yield last_frame() + DONE
    except RequestError as error:
        yield data_frame(error_body(error)) + DONE
    except Exception:
        _logger.exception("a stream failed")
        yield data_frame(error_body(internal_error())) + DONE


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """`x-ignored-params`: unknown fields by name, made safe for a header and bounded."""
    if not names:
        return {}
    safe = [re.sub(r"[^A-Za-z0-9_.\-]", "?", name[:64]) for name in names[:32]]
    return {"x-ignored-params": ",".join(safe)}
