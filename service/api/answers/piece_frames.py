"""A generation's pieces as frames: the general way, for any stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from service.api.answers.answer_form import AnswerForm
from service.api.answers.choice_text import Piece
from service.api.answers.generation import Generation
from service.api.context import ApiContext

CHARACTERS_OF_A_LOGPROB = 8
"""Writing one log probability takes as long as tokenizing this many characters."""
_LOGPROBS_AT_ONCE = 512
"""Frames with more log probabilities are written in a thread, since they would hold up the event loop."""


class PieceFrames:
    """Makes frames of pieces. Event-loop thread; frames with many log probabilities are written in a thread.

    is_writing: until that is done, nothing may be taken. is_done: the end was taken.
    """

    def __init__(self, context: ApiContext, generation: Generation, form: AnswerForm) -> None:
        self._context = context
        self._generation = generation
        self._form = form
        self._writing: asyncio.Future[bytes] | None = None
        self.is_writing = False
        self.is_done = False

    def take(self, on_written: Callable[[], None]) -> bytes:
        """Everything that is ready, the last frames with the end. on_written: called when frames that are being written
        now are ready. It is kept no longer than that, so that its owner and the generation can be freed as soon as
        nobody uses them."""
        generation, written = self._generation, b""
        if self._writing is not None:
            written, self._writing = self._writing.result(), None
        pieces = generation.take_pieces()
        began_s = time.perf_counter()
        num_logprobs = sum(map(self._form.num_logprobs, pieces)) if self._form.writes_logprobs else 0
        if num_logprobs > _LOGPROBS_AT_ONCE:
            self._write_elsewhere(pieces, num_logprobs, on_written)
            return written
        written += self._write(pieces)
        self._context.recorder.times.sse += time.perf_counter() - began_s
        if generation.error is not None or generation.is_done:
            self.is_done = True
            written += self._form.end(generation.error)
        return written

    def close(self) -> None:
        """Nothing is taken after this."""
        if self._writing is not None:
            self._writing.cancel()

    def _write_elsewhere(self, pieces: Sequence[Piece], num_logprobs: int, on_written: Callable[[], None]) -> None:
        """In a thread of the text pool, with the time that `texts` records."""
        work = self._context.texts.run(num_logprobs * CHARACTERS_OF_A_LOGPROB, lambda: self._write(pieces))
        self._writing, self.is_writing = asyncio.ensure_future(work), True
        self._writing.add_done_callback(lambda _: self._end_writing(on_written))

    def _end_writing(self, on_written: Callable[[], None]) -> None:
        self.is_writing = False
        on_written()

    def _write(self, pieces: Sequence[Piece]) -> bytes:
        """May run in a thread of the text pool."""
        return b"".join([self._form.frame(piece) for piece in pieces])
