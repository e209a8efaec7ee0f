"""One choice's tokens becoming text: detokenizer, stop strings, and what is not yet sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from service.core.events import TokenEvent
from service.core.iteration import TokenLogprobs
from service.core.request import FinishReason
from service.text.chat_output import ChatOutput, OutputDelta
from service.text.detokenizer import Detokenizer
from service.text.stop_strings import StopMatcher, StopRules
from service.text.tool_calls import TextDelta


class ScoredToken(NamedTuple):
    """A token with its logprobs (None: nothing predicts it) and the number of characters of text before it.

    is_content: whether it is part of what the choice says: not of its reasoning, of a call or of what marks them, and
    not the token that ends it. None: its text is held back, and it is what the next one is that is not None.
    """

    token_id: int
    logprobs: TokenLogprobs | None
    offset: int
    is_content: bool | None = True


class Piece(NamedTuple):
    """News of one choice. A named tuple: one is made for every write to a client.

    is_first: nothing of this choice came before. token_ids: all ids since the last piece that said something.
    finish_reason: set on the choice's last piece. stop_reason: the client's stop string or stop id that ended the
    choice, if one did.
    deltas: of a chat choice, its news told apart; then `text` is empty. has_calls: it has called a tool.
    call_is_cut: the client's own stop has ended the choice within a call.
    scored: the tokens of token_ids, if their logprobs were asked for.
    """

    choice_index: int
    prompt_index: int
    text: str
    token_ids: list[int]
    is_first: bool
    finish_reason: FinishReason | None
    stop_reason: str | int | None = None
    deltas: Sequence[OutputDelta] = ()
    has_calls: bool = False
    call_is_cut: bool = False
    scored: Sequence[ScoredToken] = ()


class ChoiceText:
    """Text state of one choice; on the event loop.

    stop_token_ids: all ids that end a choice and have no text; an output that its grammar ends has its last token's.
    output: of a chat choice that may think or call tools. num_reasoning_tokens: ids that were read while it thought.
    num_tokens: ids that count as output: up to and with the one that ended the choice, by whatever reason.
    sum_logprobs: of those that came with logprobs. detokenizer: for who reads it while it `is_plain` (`note_plain`).
    """

    def __init__(
        self,
        index: int,
        prompt_index: int,
        detokenizer: Detokenizer,
        stops: StopRules,
        output: ChatOutput | None,
        stop_token_ids: frozenset[int],
    ) -> None:
        self.index = index
        self.prompt_index = prompt_index
        self.num_tokens = 0
        self.num_reasoning_tokens = 0
        self.sum_logprobs = 0.0
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.detokenizer = detokenizer
        self._rules = stops
        self._stop_token_ids = stop_token_ids
        self._stops = StopMatcher(stops.strings, include_stop=stops.include_stop)
        self._output = output
        self._deltas: list[OutputDelta] = []
        self._unsent: list[int] = []
        self._unsent_scored: list[ScoredToken] = []
        self._num_characters = 0  # of text from the detokenizer
        self._is_first = True
        self._has_only_text = output is None and not stops.strings

    def push(self, tokens: Sequence[int | TokenEvent]) -> str:
        """Text to show after these tokens; an int is an id of which no more is to be said. Tokens after a text-side
        stop are dropped."""
        num_plain = _num_ids(tokens) if self.is_plain else 0
        text = self.push_ids(cast(Sequence[int], tokens[:num_plain])) if num_plain else ""
        for token in tokens[num_plain:]:
            event = TokenEvent(self.index, token, None) if isinstance(token, int) else token
            if self.finish_reason is not None:
                break
            self._unsent.append(event.token_id)
            self.num_tokens += 1
            offset, num_deltas = self._num_characters, len(self._deltas)
            may_say = self._output is None or self._output.may_say
            text += self._push_one(event)
            if event.logprobs is not None:
                self.sum_logprobs += event.logprobs.chosen
                is_content = may_say and self._is_content(event, self._deltas[num_deltas:])
                self._unsent_scored.append(ScoredToken(event.token_id, event.logprobs, offset, is_content))
        return text

    def finish_empty(self) -> None:
        """The choice was to have no tokens."""
        self.finish_reason = FinishReason.LENGTH

    def take(self, text: str) -> Piece | None:
        """A piece of `text` and all that was not sent yet; None if it would say nothing."""
        if not (text or self._deltas or self.finish_reason):
            return None
        piece = Piece(
            self.index,
            self.prompt_index,
            text,
            self._unsent,
            self._is_first,
            self.finish_reason,
            self.stop_reason,
            self._deltas,
            self._output is not None and self._output.has_calls,
            self.call_is_cut,
            self._unsent_scored,
        )
        self._unsent, self._unsent_scored, self._deltas, self._is_first = [], [], [], False
        return piece

    @property
    def is_plain(self) -> bool:
        """Whether text is text, and nothing but an event can end it."""
        return self._has_only_text and self.finish_reason is None

    @property
    def call_is_cut(self) -> bool:
        """Whether the client's own stop has ended it within a tool call."""
        return self.stop_reason is not None and self._output is not None and self._output.is_in_call

    @property
    def has_no_piece_yet(self) -> bool:
        """Whether there was no piece yet."""
        return self._is_first

    def note_plain(self, num_tokens: int, num_characters: int) -> None:
        """So many tokens went through `detokenizer` past this object while it `is_plain`, and so much text came out."""
        self.num_tokens += num_tokens
        self._num_characters += num_characters

    def push_ids(self, token_ids: Sequence[int]) -> str:
        """As `push`, where the choice `is_plain`: tokens that are not looked at go all at once."""
        self._unsent += token_ids
        self.num_tokens += len(token_ids)
        text = self.detokenizer.push(token_ids)
        self._num_characters += len(text)
        return text

    def _push_one(self, event: TokenEvent) -> str:
        is_stop_token = self._is_stop_token(event)
        has_text = not is_stop_token or (self._rules.include_stop and event.token_id in self._rules.token_ids)
        ids = (event.token_id,) if has_text else ()
        added = self.detokenizer.push(ids)
        self._num_characters += len(added)
        text = added if self.num_tokens <= self._rules.min_tokens else self._stops.push(added)
        if event.finish_reason is not None and self._stops.stop is None:
            text += self._stops.push(self.detokenizer.flush())
            text += self._stops.flush()
        if self._stops.stop is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP, self._stops.stop
        else:
            self.finish_reason = event.finish_reason
            if is_stop_token and event.token_id in self._rules.token_ids:
                self.stop_reason = event.token_id
        return text if self._output is None else self._split(self._output, text)

    def _is_stop_token(self, event: TokenEvent) -> bool:
        return event.finish_reason is FinishReason.STOP and event.token_id in self._stop_token_ids

    def _is_content(self, event: TokenEvent, deltas: Sequence[OutputDelta]) -> bool | None:
        """deltas: what the token has brought out."""
        if self._output is None or self._is_stop_token(event):
            return not self._is_stop_token(event)
        if not self._output.says:
            return False
        return True if any(isinstance(delta, TextDelta) for delta in deltas) else None

    def _split(self, output: ChatOutput, text: str) -> str:
        """Turn text into deltas; no text is left."""
        self.num_reasoning_tokens += output.is_thinking
        self._deltas += output.push(text)
        if self.finish_reason is not None:
            self._deltas += output.flush()
        return ""


def _num_ids(tokens: Sequence[int | TokenEvent]) -> int:
    """How many plain ids stand before the first token that is told in full."""
    kinds = list(map(type, tokens))
    return kinds.index(TokenEvent) if TokenEvent in kinds else len(kinds)
