"""Turns one choice's tokens into text: detokenizer, stop strings, and text that is held back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from service.core.events import TokenEvent
from service.core.request import FinishReason
from service.core.token_logprobs import TokenLogprobs
from service.text.chat_output import ChatOutput, OutputDelta
from service.text.detokenizer import Detokenizer
from service.text.stop_strings import StopMatcher, StopRules
from service.text.tool_calls import TextDelta


class ScoredToken(NamedTuple):
    """A token with its logprobs (None for the first token of a prompt) and the number of characters of text before it.

    is_content: whether it is part of the content, not of reasoning, of a call or of their marks, and not the token that
    ends the choice. None: its text is held back; then it counts as the next token does that is not None.
    """

    token_id: int
    logprobs: TokenLogprobs | None
    offset: int
    is_content: bool | None = True


class Piece(NamedTuple):
    """What is new in one choice. A named tuple, since one is made for every write to a client.

    is_first: nothing of this choice came before. token_ids: all ids since the last piece with news.
    finish_reason: set on the choice's last piece. stop_reason: the client's stop string or stop token id that ended the
        choice, if one did.
    deltas: of a chat choice, its reasoning, content and calls; then `text` is empty. has_calls: the choice has called a
        tool.
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
    """Text state of one choice. Event-loop thread.

    stop_token_ids: all ids that end a choice and have no text; the last token of an output that its grammar ends has
        text.
    output: of a chat choice that may have reasoning or tool calls. num_reasoning_tokens: ids of reasoning so far.
    num_tokens: output tokens, with the one that ended the choice, for whatever reason.
    sum_logprobs: of the tokens that came with logprobs. detokenizer: for the reader that uses it while `is_plain` (see
        `note_plain`).
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
        """The text to show after these tokens; may be empty. An int is a token id without further facts. Tokens after a
        stop string are dropped."""
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
        """The choice has ended without tokens."""
        self.finish_reason = FinishReason.LENGTH

    def take(self, text: str) -> Piece | None:
        """A piece of `text` and everything that was not sent yet; None if there is no news."""
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
        """Whether its text is shown as it is, and only an event can end it."""
        return self._has_only_text and self.finish_reason is None

    @property
    def call_is_cut(self) -> bool:
        """Whether the client's own stop has ended the choice within a tool call."""
        return self.stop_reason is not None and self._output is not None and self._output.is_in_call

    @property
    def has_no_piece_yet(self) -> bool:
        """Whether there was no piece yet."""
        return self._is_first

    def note_plain(self, num_tokens: int, num_characters: int) -> None:
        """`num_tokens` tokens went through `detokenizer` without this object, while it `is_plain`, and gave
        `num_characters` characters."""
        self.num_tokens += num_tokens
        self._num_characters += num_characters

    def push_ids(self, token_ids: Sequence[int]) -> str:
        """As `push`, for a choice that `is_plain`: token ids are decoded all at once."""
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
        """deltas: what the token has produced."""
        if self._output is None or self._is_stop_token(event):
            return not self._is_stop_token(event)
        if not self._output.says:
            return False
        return True if any(isinstance(delta, TextDelta) for delta in deltas) else None

    def _split(self, output: ChatOutput, text: str) -> str:
        """Turn text into deltas; the text that is left is empty."""
        self.num_reasoning_tokens += output.is_thinking
        self._deltas += output.push(text)
        if self.finish_reason is not None:
            self._deltas += output.flush()
        return ""


def _num_ids(tokens: Sequence[int | TokenEvent]) -> int:
    """The number of plain ids before the first token that is an event."""
    kinds = list(map(type, tokens))
    return kinds.index(TokenEvent) if TokenEvent in kinds else len(kinds)
