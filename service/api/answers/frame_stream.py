"""The frames of a generation's stream."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import orjson

from service.api.answers.answer_form import AnswerForm
from service.api.answers.choice_text import ChoiceText
from service.api.answers.generation import Generation
from service.api.answers.piece_frames import PieceFrames
from service.api.context import ApiContext
from service.api.error_responses import internal_error
from service.engine.streams import RequestStream

_logger = logging.getLogger(__name__)


class FrameStream:
    """A generation's frames as a `FrameSource`. Frames that are ready together go out together, the last ones with the
    end. An error becomes an event; the stream has an end in any case.

    A plain stream has one choice and shows nothing but its text. Nearly all its frames differ in the text alone: they
    are made straight from token ids, in few steps. Its first and last frames, and all frames of other streams, are made
    from pieces (piece_frames.py), which is the plain twin.
    """

    def __init__(self, context: ApiContext, generation: Generation, form: AnswerForm) -> None:
        self._context = context
        self._times = context.recorder.times
        self._generation = generation
        self._form = form
        self._before, self._after = form.around_text or (b"", b"")
        self._plain: _PlainText | None = None
        self._pieces = PieceFrames(context, generation, form)
        self._reader: Callable[[], None] | None = None
        self._has_begun = False
        self.is_done = False

    def read_by(self, reader: Callable[[], None]) -> None:
        self._reader = reader
        self._generation.read_by(reader)

    def take(self) -> bytes:
        if self.is_done or self._pieces.is_writing:
            return b""
        try:
            if not self._has_begun:
                self._has_begun = True
                return self._form.begin() + self._take_pieces()
            frame = self._take_plain() if self._before else None
            return self._take_pieces() if frame is None else frame
        except Exception:  # a defect of ours: the headers are sent, so the client is told in the stream
            _logger.exception("a stream failed")
            self.is_done = True
            return self._form.end(internal_error())

    def close(self, reason: str) -> None:
        self.is_done, self._reader = True, None  # a generation that is aborted here has not come to its end
        self._leave_plain()
        self._pieces.close()
        self._times.detokenize += self._generation.text_s
        if self._generation.close():
            self._context.recorder.record_abort(reason)

    def _take_plain(self) -> bytes | None:
        """The frame of all tokens that have come; empty if they give no text yet. None, with nothing taken, if pieces
        have to be made of them."""
        began_s = time.perf_counter()
        if self._plain is None:
            choice = self._generation.plain_choice()
            if choice is None:
                return None
            self._plain = _PlainText(*choice)
        text = self._plain.take()
        if not text:
            return None if text is None else b""
        told_s = time.perf_counter()
        frame = b"%b%b%b" % (self._before, orjson.dumps(text), self._after)
        times = self._times
        times.detokenize += told_s - began_s
        times.sse += time.perf_counter() - told_s
        return frame

    def _leave_plain(self) -> None:
        if self._plain is not None:
            self._plain.leave()
            self._plain = None

    def _take_pieces(self) -> bytes:
        self._leave_plain()
        frames = self._pieces.take(self._on_written)
        self.is_done = self._pieces.is_done
        return frames

    def _on_written(self) -> None:
        if self._reader is not None:
            self._reader()


class _PlainText:
    """Text of one choice, read straight from the ids of its request's stream. On leaving, the choice is told how many
    tokens and characters there were."""

    def __init__(self, stream: RequestStream, choice: ChoiceText) -> None:
        self._choice = choice
        self._take_ids, self._push = stream.take_ids, choice.detokenizer.push
        self._num_tokens = self._num_characters = 0

    def take(self) -> str | None:
        """The text that the new ids add; may be empty. None, with nothing taken, if there is more than ids."""
        token_ids = self._take_ids()
        if token_ids is None:
            return None
        text = self._push(token_ids)
        self._num_tokens += len(token_ids)
        self._num_characters += len(text)
        return text

    def leave(self) -> None:
        self._choice.note_plain(self._num_tokens, self._num_characters)
