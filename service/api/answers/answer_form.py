"""How an endpoint writes its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from service.api.answers.choice_text import Piece
from service.api.answers.generation import CollectedChoice
from service.errors import RequestError


class AnswerForm(Protocol):
    """Of one call. A stream is `begin`, a frame a piece and one `end`; an answer that is not streamed is `whole`.

    around_text: what stands before and behind the JSON of a text in the frame of a piece that says nothing else, where
        that is always the same; None: every frame is to be made by `frame`.
    writes_logprobs: pieces are to be asked for `num_logprobs`.
    keep_alive: a sign of life for a stream that has long had nothing to send.
    """

    around_text: tuple[bytes, bytes] | None
    writes_logprobs: bool
    keep_alive: bytes

    def begin(self) -> bytes:
        """What is sent before anything is generated, perhaps nothing."""
        ...

    def frame(self, piece: Piece) -> bytes:
        """Any thread."""
        ...

    def num_logprobs(self, piece: Piece) -> int:
        """Entries that the piece's frame writes."""
        ...

    def end(self, error: RequestError | None = None) -> bytes:
        """What follows the last piece, or says that an error has ended the stream. Does not raise with an error."""
        ...

    def whole(self, choices: Sequence[CollectedChoice]) -> str:
        """The JSON of an answer that is not streamed. Any thread."""
        ...
