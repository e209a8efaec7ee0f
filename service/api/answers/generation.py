"""The engine requests of one HTTP call, from submission to the last piece of text."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from service.api.answers.choice_text import ChoiceText, Piece, ScoredToken
from service.core.events import FinalEvent, Outcome, PromptEvent, StreamEvent, TokenEvent
from service.core.request import FinishReason, Request
from service.core.stats import RequestStats
from service.core.token_logprobs import TokenLogprobs
from service.engine.async_engine import AsyncEngine
from service.engine.streams import RequestStream
from service.errors import RequestError, Unavailable
from service.protocol.usage import Usage
from service.text.chat_output import ChatOutput, OutputDelta
from service.text.detokenizer import make_detokenizer
from service.text.stop_strings import StopRules
from service.text.tokenizer import Tokenizer

_IDS_ONLY = {int}


@dataclass(frozen=True, slots=True)
class CollectedChoice:
    """One complete choice. call_is_cut: see Piece."""

    index: int
    prompt_index: int
    text: str
    token_ids: list[int]
    prompt_token_ids: list[int]
    finish_reason: FinishReason
    stop_reason: str | int | None = None
    deltas: Sequence[OutputDelta] = ()
    scored: Sequence[ScoredToken] = ()
    mean_logprob: float = 0.0
    call_is_cut: bool = False


class Generation:
    """One engine request per prompt; if one fails, all end. Event-loop thread.

    Submits on construction: an engine's refusal is raised, and what was already submitted is aborted. The caller calls
    `close` in a `finally`. Choice index = prompt index * n + i.

    make_output: makes the reader that separates reasoning and calls from content; None: everything is content.
    note_end(prompt index, event): called once per prompt, when its request ends; event None: `close` aborted it.
    note_finish(reason): called once per choice, when it is complete.
    num_returned: `collect` returns this many choices per prompt, the best by mean logprob; None: all of them.
    error: the error of a request that failed, or Unavailable if the server aborted one; then the other requests are of
        no use. None again after `close`.
    text_s: seconds spent turning tokens into text so far.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        tokenizer: Tokenizer,
        requests: Sequence[Request],
        stops: StopRules,
        make_output: Callable[[], ChatOutput] | None = None,
        note_end: Callable[[int, FinalEvent | None], None] = lambda prompt_index, event: None,
        *,
        note_finish: Callable[[FinishReason], None] = lambda reason: None,
        skip_special_tokens: bool = True,
        num_returned: int | None = None,
    ) -> None:
        self._engine = engine
        self._note_end = note_end
        self._note_finish = note_finish
        self._counts_reasoning = make_output is not None
        self._requests = requests
        self._num_returned = num_returned
        self._prompt_logprobs: dict[int, tuple[TokenLogprobs, ...]] = {}
        self._streams: dict[int, RequestStream] = {}  # prompt index -> stream that has not ended
        self._stats: list[RequestStats] = []
        self.error: RequestError | None = None
        self.text_s = 0.0
        self._choices: list[ChoiceText] = []
        for prompt_index, request in enumerate(requests):
            for _ in range(request.sampling.n):
                detokenizer = make_detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
                output = None if make_output is None else make_output()
                self._choices.append(
                    ChoiceText(
                        len(self._choices), prompt_index, detokenizer, stops, output, request.sampling.stop_token_ids
                    )
                )
        try:
            for prompt_index, request in enumerate(requests):
                self._streams[prompt_index] = engine.submit(request)
        except BaseException:
            self.close()
            raise

    @property
    def is_done(self) -> bool:
        """Whether all prompts have ended, and none with an `error`."""
        return not self._streams and self.error is None

    @property
    def usage(self) -> Usage:
        """As `usage_fields` has it."""
        return Usage(**self.usage_fields())

    def usage_fields(self) -> dict[str, Any]:
        """The fields of `Usage`. A prompt is counted once, and all its completions. Cached tokens are known when the
        call is done."""
        prompt_tokens = sum([request.num_prompt_tokens for request in self._requests])
        completion_tokens = sum([choice.num_tokens for choice in self._choices])
        cached_tokens = sum([stats.num_cached_tokens for stats in self._stats])
        fields: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "prompt_tokens_details": None if self._streams else {"cached_tokens": cached_tokens},
        }
        if self._counts_reasoning:
            num_reasoning_tokens = sum([choice.num_reasoning_tokens for choice in self._choices])
            fields["completion_tokens_details"] = {"reasoning_tokens": num_reasoning_tokens}
        return fields

    def prompt_token_ids(self, prompt_index: int) -> list[int]:
        return list(self._requests[prompt_index].prompt_token_ids)

    @property
    def num_logprobs(self) -> int:
        """The number of log probabilities that the answer may have to write."""
        num = 0
        for choice in self._choices:
            sampling = self._requests[choice.prompt_index].sampling
            num += 0 if sampling.num_logprobs is None else choice.num_tokens * (sampling.num_logprobs + 1)
            num += len(self._prompt_logprobs.get(choice.prompt_index, ())) * ((sampling.num_prompt_logprobs or 0) + 1)
        return num

    def prompt_logprobs(self, prompt_index: int) -> tuple[TokenLogprobs, ...]:
        """One entry per prompt token but the first, if asked for; known from the prompt's first piece on."""
        return self._prompt_logprobs[prompt_index]

    def read_by(self, reader: Callable[[], None]) -> None:
        """Has `reader` called whenever `take_pieces` may have something to return. `reader` must neither raise nor
        block."""
        for stream in self._streams.values():
            stream.read_by(reader)

    def take_pieces(self) -> list[Piece]:
        """What the events since the last call say; may be empty. After an `error` nothing that matters comes."""
        began_s = time.perf_counter()
        pieces: list[Piece] = []
        for prompt_index, stream in list(self._streams.items()):
            if stream.has_events:
                pieces += self._read(prompt_index, stream.take())
        self.text_s += time.perf_counter() - began_s
        return pieces

    def plain_choice(self) -> tuple[RequestStream, ChoiceText] | None:
        """The call's only choice and its stream, if the choice has begun and is plain text; else None. A caller that
        takes the stream's ids from there decodes them itself (`ChoiceText.detokenizer`)."""
        choice = self._choices[0]
        if len(self._choices) > 1 or choice.has_no_piece_yet or not choice.is_plain or not self._streams:
            return None
        return self._streams[0], choice

    async def collect(self) -> list[CollectedChoice]:
        """The choices to return, complete, in order of their index. Raises `error`, if there is one."""
        news = asyncio.Event()
        self.read_by(news.set)
        pieces: list[list[Piece]] = [[] for _ in self._choices]
        while True:
            news.clear()
            for piece in self.take_pieces():
                pieces[piece.choice_index].append(piece)
            if self.error is not None:
                raise self.error
            if self.is_done:
                break
            await news.wait()
        prompts = [self.prompt_token_ids(index) for index in range(len(self._requests))]
        return self._best(
            [
                _collected(choice, prompts[choice.prompt_index], of_choice)
                for choice, of_choice in zip(self._choices, pieces, strict=True)
            ]
        )

    def _best(self, choices: list[CollectedChoice]) -> list[CollectedChoice]:
        """The best choices of each prompt, renumbered."""
        if self._num_returned is None or self._num_returned >= self._requests[0].sampling.n:
            return choices
        shown: list[CollectedChoice] = []
        for prompt_index in range(len(self._requests)):
            of_prompt = [choice for choice in choices if choice.prompt_index == prompt_index]
            of_prompt.sort(key=lambda choice: -choice.mean_logprob)
            shown += of_prompt[: self._num_returned]
        return [replace(choice, index=index) for index, choice in enumerate(shown)]

    def close(self) -> bool:
        """Abort the requests that have not ended. Idempotent; returns whether there were any."""
        aborted = bool(self._streams)
        for prompt_index in self._streams:
            self._engine.abort(self._requests[prompt_index].request_id)
            self._note_end(prompt_index, None)
        self._streams.clear()
        self.error = None  # its traceback refers to this call, if it was raised: no reference cycle
        return aborted

    def _read(self, prompt_index: int, events: Sequence[StreamEvent]) -> list[Piece]:
        if set(map(type, events)) == _IDS_ONLY:
            piece = self._push_ids(prompt_index, cast(Sequence[int], events))
            return [] if piece is None else [piece]
        by_choice: defaultdict[int, list[int | TokenEvent]] = defaultdict(list)
        for event in events:
            if isinstance(event, int):
                by_choice[0].append(event)
            elif isinstance(event, TokenEvent):
                by_choice[event.choice_index].append(event)
            elif isinstance(event, PromptEvent):
                self._prompt_logprobs[prompt_index] = event.logprobs
            elif isinstance(event, FinalEvent):
                self._end(prompt_index, event)
        pieces = [self._push(prompt_index, index, tokens) for index, tokens in by_choice.items()]
        if prompt_index not in self._streams and self._requests[prompt_index].sampling.max_tokens == 0:
            pieces += self._finish_empty(prompt_index)
        return [piece for piece in pieces if piece is not None]

    def _push_ids(self, prompt_index: int, token_ids: Sequence[int]) -> Piece | None:
        """The common case: plain tokens of a prompt's only choice."""
        choice = self._choices[prompt_index * self._requests[prompt_index].sampling.n]
        if choice.is_plain:
            return choice.take(choice.push_ids(token_ids))
        return self._push(prompt_index, 0, token_ids)

    def _push(self, prompt_index: int, choice_index: int, tokens: Sequence[int | TokenEvent]) -> Piece | None:
        request = self._requests[prompt_index]
        choice = self._choices[prompt_index * request.sampling.n + choice_index]
        if choice.finish_reason is not None:
            return None  # tokens that were under way when its text ended it
        text = choice.push(tokens)
        last = tokens[-1]
        ended_by_engine = isinstance(last, TokenEvent) and last.finish_reason is not None
        if choice.finish_reason is not None:
            self._note_finish(choice.finish_reason)
        stopped_by_text = choice.finish_reason is not None and not ended_by_engine
        if stopped_by_text and prompt_index in self._streams:
            self._engine.stop_choice(request.request_id, choice_index)
        return choice.take(text)

    def _finish_empty(self, prompt_index: int) -> list[Piece | None]:
        """For a prompt that has ended and whose choices have no tokens."""
        pieces: list[Piece | None] = []
        for choice in self._choices:
            if choice.prompt_index == prompt_index and self.error is None:
                choice.finish_empty()
                self._note_finish(FinishReason.LENGTH)
                pieces.append(choice.take(""))
        return pieces

    def _end(self, prompt_index: int, event: FinalEvent) -> None:
        del self._streams[prompt_index]
        self._stats.append(event.stats)
        self._note_end(prompt_index, event)
        if event.outcome is Outcome.ABORTED:
            self.error = Unavailable("The server aborted the request.", code="aborted")
        elif event.error is not None:
            self.error = event.error


def _collected(choice: ChoiceText, prompt_token_ids: list[int], pieces: Sequence[Piece]) -> CollectedChoice:
    assert choice.finish_reason is not None, "a finished request has finished all its choices"
    return CollectedChoice(
        choice.index,
        choice.prompt_index,
        "".join([piece.text for piece in pieces]),
        [token_id for piece in pieces for token_id in piece.token_ids],
        prompt_token_ids,
        choice.finish_reason,
        choice.stop_reason,
        [delta for piece in pieces for delta in piece.deltas],
        [token for piece in pieces for token in piece.scored],
        choice.sum_logprobs / max(1, choice.num_tokens),
        choice.call_is_cut,
    )
