"""The two ways to answer a generation call: one JSON body, or a stream of frames."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence

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
    stream = _Stream(context, generation, frames, last_frame, num_logprobs)
    return TokenStreamResponse(
        stream.frames(),
        stream.close,
        context.recorder.times,
        keepalive_s=context.config.stream_keepalive_s,
        send_timeout_s=context.config.stream_send_timeout_s,
        headers=ignored_header(ignored),
    )


class _Stream:
    """A generation's pieces as frames. Those that are ready together go out together, the last ones with the end."""

    def __init__(
        self,
        context: ApiContext,
        generation: Generation,
        frame: Callable[[Piece], bytes],
        last_frame: Callable[[], bytes],
        num_logprobs: Callable[[Piece], int] | None,
    ) -> None:
        self._context = context
        self._times = context.recorder.times
        self._generation = generation
        self._frame = frame
        self._last_frame = last_frame
        self._num_logprobs = num_logprobs

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """An error becomes an event; [DONE] comes in any case."""
        generation, written = self._generation, b""
        try:
            while not generation.is_done:
                if written:
                    yield written
                pieces = await generation.next_pieces()
                written = self._write(pieces) if self._num_logprobs is None else await self._write_long(pieces)
            yield written + self._last_frame() + DONE
        except RequestError as error:
            yield data_frame(error_body(error)) + DONE
        except Exception:  # a defect of ours: the headers are sent, so the client is told in the stream
            _logger.exception("a stream failed")
            yield data_frame(error_body(internal_error())) + DONE

    def close(self, reason: str) -> None:
        """The stream is over; reason: why, if it is not complete."""
        self._times.detokenize += self._generation.text_s
        if self._generation.close():
            self._context.recorder.record_abort(reason)

    async def _write_long(self, pieces: Sequence[Piece]) -> bytes:
        assert self._num_logprobs is not None
        num_entries = sum(map(self._num_logprobs, pieces))
        return await self._context.texts.run(num_entries * _CHARACTERS_OF_A_LOGPROB, lambda: self._write(pieces))

    def _write(self, pieces: Sequence[Piece]) -> bytes:
        began_s = time.perf_counter()
        written = b"".join([self._frame(piece) for piece in pieces])
        self._times.sse += time.perf_counter() - began_s
        return written


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """`x-ignored-params`: unknown fields by name, made safe for a header and bounded."""
    if not names:
        return {}
    safe = [re.sub(r"[^A-Za-z0-9_.\-]", "?", name[:64]) for name in names[:32]]
    return {"x-ignored-params": ",".join(safe)}
