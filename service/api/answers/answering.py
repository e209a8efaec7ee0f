"""The two ways to answer a generation call: one JSON body, or a stream of frames."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Sequence

from starlette.requests import Request
from starlette.responses import Response

from service.api.answers.choice_text import Piece
from service.api.answers.generation import CollectedChoice, Generation
from service.api.answers.plain_frames import PlainFrames
from service.api.answers.sse import DONE, TokenStreamResponse, data_frame
from service.api.context import ApiContext
from service.api.disconnect import ClientGone, run_unless_disconnected
from service.api.error_responses import error_body, internal_error, nobody_there
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
        json = await context.texts.run(num_characters, lambda: whole_json(body(choices)))
        return Response(json, headers=ignored_header(ignored), media_type="application/json")
    except ClientGone:
        reason = "client_disconnected"
        return nobody_there()
    finally:
        context.recorder.times.detokenize += generation.text_s
        if generation.close():
            context.recorder.record_abort(reason)


def abandon(context: ApiContext, generation: Generation) -> None:
    """The call fails before its answer could begin: nobody will read what it has submitted."""
    if generation.close():
        context.recorder.record_abort("call_failed")


def whole_json(answer: ChatResponse | CompletionResponse) -> str:
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
    frame: Callable[[Piece], bytes],
    last_frame: Callable[[], bytes],
    around_text: tuple[bytes, bytes] | None,
    num_logprobs: Callable[[Piece], int] | None = None,
) -> Response:
    """Stream the `frame` of every piece, then `last_frame`; abort if the client leaves or does not read.

    around_text: what stands around the text in the frame of a piece that says nothing else, if that is always the same.
    num_logprobs: entries that a piece's frame writes, where they may be so many that they would hold up the event loop.
    """
    return TokenStreamResponse(
        _Frames(context, generation, frame, last_frame, around_text, num_logprobs),
        context.recorder.times,
        context.unread,
        keepalive_s=context.config.stream_keepalive_s,
        send_timeout_s=context.config.stream_send_timeout_s,
        headers=ignored_header(ignored),
    )


class _Frames:
    """A generation's pieces as a `FrameSource`. Those that are ready together go out together, the last ones with the
    end. An error becomes an event; [DONE] comes in any case.
    """

    def __init__(
        self,
        context: ApiContext,
        generation: Generation,
        frame: Callable[[Piece], bytes],
        last_frame: Callable[[], bytes],
        around_text: tuple[bytes, bytes] | None,
        num_logprobs: Callable[[Piece], int] | None,
    ) -> None:
        self._context = context
        self._times = context.recorder.times
        self._generation = generation
        self._frame = frame
        self._last_frame = last_frame
        self._plain = None if around_text is None else PlainFrames(generation, *around_text, context.recorder.times)
        self._num_logprobs = num_logprobs
        self._writing: asyncio.Future[bytes] | None = None
        self._reader: Callable[[], None] | None = None
        self.is_done = False

    def read_by(self, reader: Callable[[], None]) -> None:
        self._reader = reader
        self._generation.read_by(reader)

    def take(self) -> bytes:
        if self.is_done or (self._writing is not None and not self._writing.done()):
            return b""
        try:
            return self._take()
        except Exception:  # a defect of ours: the headers are sent, so the client is told in the stream
            _logger.exception("a stream failed")
            return self._ended_by(internal_error())

    def close(self, reason: str) -> None:
        self._reader = None
        if self._writing is not None:
            self._writing.cancel()
        self._times.detokenize += self._generation.text_s
        if self._generation.close():
            self._context.recorder.record_abort(reason)

    def _take(self) -> bytes:
        if self._plain is not None:
            frame = self._plain.take()
            if frame is not None:
                return frame
        generation, written = self._generation, b""
        if self._writing is not None:
            written, self._writing = self._writing.result(), None
        pieces = generation.take_pieces()
        if self._num_logprobs is not None and pieces:
            self._write_elsewhere(pieces, sum(map(self._num_logprobs, pieces)))
            return written
        began_s = time.perf_counter()
        written += self._write(pieces)
        self._times.sse += time.perf_counter() - began_s
        if generation.error is not None:
            return written + self._ended_by(generation.error)
        if generation.is_done:
            self.is_done = True
            return written + self._last_frame() + DONE
        return written

    def _ended_by(self, error: RequestError) -> bytes:
        self.is_done = True
        return data_frame(error_body(error)) + DONE

    def _write_elsewhere(self, pieces: Sequence[Piece], num_logprobs: int) -> None:
        """Where it does not hold up the event loop, and with the time that `texts` notes; until it is done, nothing is
        taken."""
        work = self._context.texts.run(num_logprobs * _CHARACTERS_OF_A_LOGPROB, lambda: self._write(pieces))
        self._writing = asyncio.ensure_future(work)
        self._writing.add_done_callback(self._on_written)

    def _on_written(self, _: object) -> None:
        if self._reader is not None:
            self._reader()

    def _write(self, pieces: Sequence[Piece]) -> bytes:
        """Perhaps in a thread of the pool."""
        return b"".join([self._frame(piece) for piece in pieces])


def ignored_header(names: Sequence[str]) -> dict[str, str]:
    """`x-ignored-params`: unknown fields by name, made safe for a header and bounded."""
    if not names:
        return {}
    safe = [re.sub(r"[^A-Za-z0-9_.\-]", "?", name[:64]) for name in names[:32]]
    return {"x-ignored-params": ",".join(safe)}
