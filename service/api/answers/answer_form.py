"""How an endpoint writes its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.api.answers.choice_text import Piece
from service.api.answers.generation import CollectedChoice
from service.errors import RequestError


class AnswerForm(Protocol):
    """How one call's answer is written. A stream is `begin`, one frame per piece and one `end`; an answer that is not
    streamed is `whole`.

    around_text: the bytes before and after a text's JSON in the frame of a piece that has nothing but text, where they
        are always the same; None: every frame is made by `frame`.
    writes_logprobs: whether `num_logprobs` is to be called for pieces.
    keep_alive: what a stream sends after it has long had nothing to send.
    """

    around_text: tuple[bytes, bytes] | None
    writes_logprobs: bool
    keep_alive: bytes

    def begin(self) -> bytes:
        """What is sent before anything is generated; may be empty."""
        ...

    def frame(self, piece: Piece) -> bytes:
        """Any thread."""
        ...

    def num_logprobs(self, piece: Piece) -> int:
        """The number of log probabilities in the piece's frame."""
        ...

    def end(self, error: RequestError | None = None) -> bytes:
        """What follows the last piece, or the event that tells of the error that ended the stream. With an error it
        does not raise."""
        ...

    def whole(self, choices: Sequence[CollectedChoice]) -> str:
        """The JSON of an answer that is not streamed. Any thread."""
        ...
