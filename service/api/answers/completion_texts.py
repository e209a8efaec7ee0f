"""What the choices of a completion say: echo, text and log probabilities, as chunks of a stream or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from service.api.answers.choice_text import Piece, ScoredToken
from service.api.answers.chunk_frames import TEXT_PLACE, ChunkFrames
from service.api.answers.generation import CollectedChoice, Generation
from service.api.answers.token_logprobs import completion_logprobs, prompt_logprobs, scored_prompt
from service.api.calls.request_building import CallHead
from service.api.calls.validation import CheckedCall, tier_of
from service.protocol.completions import CompletionChoice, CompletionLogprobs, CompletionResponse
from service.text.tokenizer import Tokenizer

PLAIN_CONTENT = b'"text":' + TEXT_PLACE
"""`ChunkFrames.around_text`."""


class CompletionTexts:
    """For one call. echoes: the text of each prompt, to stand before its completions; None if it is not wanted."""

    def __init__(
        self, call: CheckedCall, generation: Generation, tokenizer: Tokenizer, echoes: Sequence[str] | None
    ) -> None:
        self._call = call
        self._generation = generation
        self._tokenizer = tokenizer
        self._echoes = echoes

    def frame(self, chunks: ChunkFrames, piece: Piece) -> bytes:
        """A piece as a chunk of the stream."""
        if piece.is_first and self._echoes is not None:
            text = orjson.dumps(self._echoes[piece.prompt_index] + piece.text)
        else:
            text = orjson.dumps(piece.text)
        logprobs = b"null" if self._call.logprobs is None else self._logprobs_json(piece)
        return chunks.choice(
            piece.choice_index, b'"text":' + text, chunks.end_of(piece), chunks.ids_of(piece), logprobs
        )

    def num_logprobs(self, piece: Piece) -> int:
        """Entries that the piece's frame writes."""
        num_tokens = len(piece.scored)
        if piece.is_first and self._echoes is not None:
            num_tokens += len(self._generation.prompt_token_ids(piece.prompt_index))
        return num_tokens * ((self._call.logprobs or 0) + 1)

    def answer(self, head: CallHead, fingerprint: str, choices: Sequence[CollectedChoice]) -> CompletionResponse:
        """The whole answer."""
        return CompletionResponse(
            id=head.call_id,
            object="text_completion",
            created=head.created,
            model=self._call.model,
            system_fingerprint=fingerprint,
            choices=[self.choice(choice) for choice in choices],
            usage=self._generation.usage,
            **tier_of(self._call),
        )

    def choice(self, choice: CollectedChoice) -> CompletionChoice:
        """A whole choice."""
        logprobs = self._logprobs(choice.prompt_index, choice.scored, begins=True)
        shape = CompletionChoice(
            index=choice.index,
            text=self._echo(choice.prompt_index) + choice.text,
            logprobs=None if logprobs is None else CompletionLogprobs(**logprobs),
            finish_reason=choice.finish_reason.value,
            stop_reason=choice.stop_reason,
        )
        if self._call.return_token_ids:
            shape.token_ids = choice.token_ids
            shape.prompt_token_ids = choice.prompt_token_ids
        if self._call.prompt_logprobs is not None:
            scores = self._generation.prompt_logprobs(choice.prompt_index)
            cut = [each._replace(top=each.top[: self._call.prompt_logprobs]) for each in scores]
            shape.prompt_logprobs = prompt_logprobs(self._tokenizer, choice.prompt_token_ids, cut)
        return shape

    def _echo(self, prompt_index: int) -> str:
        return "" if self._echoes is None else self._echoes[prompt_index]

    def _logprobs_json(self, piece: Piece) -> bytes:
        logprobs = self._logprobs(piece.prompt_index, piece.scored, begins=piece.is_first)
        return b"null" if logprobs is None or not logprobs["tokens"] else orjson.dumps(logprobs)

    def _logprobs(self, prompt_index: int, tokens: Sequence[ScoredToken], *, begins: bool) -> dict[str, Any] | None:
        """begins: these are the choice's first tokens, so that an echoed prompt's stand before them."""
        num_top = self._call.logprobs
        if num_top is None:
            return None
        fields = completion_logprobs(self._tokenizer, tokens, shift=len(self._echo(prompt_index)))
        if self._echoes is None or not begins:
            return fields
        prompt_ids = self._generation.prompt_token_ids(prompt_index)
        scores = self._generation.prompt_logprobs(prompt_index)
        prompt = list(scored_prompt(self._tokenizer, prompt_ids, scores, num_top))
        before = completion_logprobs(self._tokenizer, prompt)
        return {name: before[name] + fields[name] for name in fields}
