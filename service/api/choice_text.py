"""One choice's tokens becoming text: detokenizer, stop strings, and what is not yet sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.core.events import TokenEvent
from service.core.request import FinishReason
from service.text.detokenizer import Detokenizer
from service.text.stop_strings import StopMatcher


@dataclass(frozen=True, slots=True)
class Piece:
    """News of one choice.

    is_first: nothing of this choice came before. token_ids: all ids since the last piece that said something.
    finish_reason: set on the choice's last piece.
    """

    index: int
    prompt_index: int
    text: str
    token_ids: list[int]
    is_first: bool
    finish_reason: FinishReason | None

    @property
    def says_nothing(self) -> bool:
        return not (self.text or self.finish_reason)


class ChoiceText:
    """Text state of one choice; on the event loop.

    num_tokens: ids that count as output: up to and with the one that ended the choice, by whatever reason.
    """

    def __init__(self, index: int, prompt_index: int, detokenizer: Detokenizer, stops: Sequence[str]) -> None:
        self.index = index
        self.prompt_index = prompt_index
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)
        self._unsent: list[int] = []
        self._is_first = True

    def push(self, events: Sequence[TokenEvent]) -> str:
        """Text to show after these tokens. Tokens after a text-side stop are dropped."""
        text = ""
        for event in events:
            if self.finish_reason is not None:
                break
            self._unsent.append(event.token_id)
            self.num_tokens += 1
            text += self._push_one(event)
        return text

    def take(self, text: str) -> Piece:
        """A piece of `text` and all that was not sent yet."""
        piece = Piece(self.index, self.prompt_index, text, self._unsent, self._is_first, self.finish_reason)
        if not piece.says_nothing:
            self._unsent, self._is_first = [], False
        return piece

    def _push_one(self, event: TokenEvent) -> str:
        # The token that ends a choice by being a stop token has no text.
        ids = () if event.finish_reason is FinishReason.STOP else (event.token_id,)
        text = self._stops.push(self._detokenizer.push(ids))
        if event.finish_reason is not None and self._stops.stop is None:
            text += self._stops.push(self._detokenizer.flush())
            text += self._stops.flush()
        self.finish_reason = FinishReason.STOP if self._stops.stop is not None else event.finish_reason
        return text
