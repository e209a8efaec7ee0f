"""The answer to a completion: echo, text and log probabilities, as chunks of a stream or whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from service.api.answers.choice_text import Piece, ScoredToken
from service.api.answers.chunk_frames import TEXT_PLACE, ChunkFrames, whole_json
from service.api.answers.generation import CollectedChoice, Generation
from service.api.answers.sse_frames import KEEP_ALIVE
from service.api.answers.token_logprobs import TokenNames, completion_logprobs, prompt_logprobs, scored_prompt
from service.api.calls.prepared_call import PreparedCall
from service.errors import RequestError
from service.protocol.completions import CompletionChoice, CompletionLogprobs, CompletionResponse


class CompletionAnswer:
    """An `AnswerForm`."""

    keep_alive = KEEP_ALIVE

    def __init__(self, call: PreparedCall, generation: Generation) -> None:
        self._call = call
        self._checked = call.checked
        self.writes_logprobs = call.checked.logprobs is not None
        self._echoes = call.prompts.echoes
        self._names = TokenNames(call.model.tokenizer, as_ids=call.checked.tokens_as_ids)
        self._generation = generation
        self._chunks = ChunkFrames(b"text_completion", call, generation)
        self.around_text = self._chunks.around_text(b'"text":' + TEXT_PLACE)

    def begin(self) -> bytes:
        return b""

    def frame(self, piece: Piece) -> bytes:
        echo = self._echo(piece.prompt_index) if piece.is_first else ""
        content = b'"text":' + orjson.dumps(echo + piece.text)
        logprobs = self._logprobs_json(piece) if self.writes_logprobs else b"null"
        chunks = self._chunks
        ids = chunks.ids_of(piece) + chunks.prompt_ids_of(piece)
        return chunks.choice(piece.choice_index, content, chunks.end_of(piece), ids, logprobs)

    def num_logprobs(self, piece: Piece) -> int:
        num_tokens = len(piece.scored)
        if piece.is_first and self._echoes is not None:
            num_tokens += len(self._generation.prompt_token_ids(piece.prompt_index))
        return num_tokens * ((self._checked.logprobs or 0) + 1)

    def end(self, error: RequestError | None = None) -> bytes:
        return self._chunks.end(error)

    def whole(self, choices: Sequence[CollectedChoice]) -> str:
        call = self._call
        answer = CompletionResponse(
            id=call.head.call_id,
            object="text_completion",
            created=call.head.created,
            model=call.checked.model,
            system_fingerprint=call.model.system_fingerprint,
            choices=[self._choice(choice) for choice in choices],
            usage=self._generation.usage,
            service_tier=call.checked.answered_tier,
        )
        return whole_json(answer)

    def _choice(self, choice: CollectedChoice) -> CompletionChoice:
        logprobs = self._logprobs(choice.prompt_index, choice.scored, begins=True)
        shape = CompletionChoice(
            index=choice.index,
            text=self._echo(choice.prompt_index) + choice.text,
            logprobs=None if logprobs is None else CompletionLogprobs(**logprobs),
            finish_reason=choice.finish_reason.value,
            stop_reason=choice.stop_reason,
            token_ids=None,
            prompt_token_ids=None,
            prompt_logprobs=None,
        )
        if self._checked.return_token_ids:
            shape.token_ids = choice.token_ids
            shape.prompt_token_ids = choice.prompt_token_ids
        if self._checked.prompt_logprobs is not None:
            scores = self._generation.prompt_logprobs(choice.prompt_index)
            cut = [each._replace(top=each.top[: self._checked.prompt_logprobs]) for each in scores]
            shape.prompt_logprobs = prompt_logprobs(self._names, choice.prompt_token_ids, cut)
        return shape

    def _echo(self, prompt_index: int) -> str:
        return "" if self._echoes is None else self._echoes[prompt_index]

    def _logprobs_json(self, piece: Piece) -> bytes:
        logprobs = self._logprobs(piece.prompt_index, piece.scored, begins=piece.is_first)
        return b"null" if logprobs is None or not logprobs["tokens"] else orjson.dumps(logprobs)

    def _logprobs(self, prompt_index: int, tokens: Sequence[ScoredToken], *, begins: bool) -> dict[str, Any] | None:
        """begins: these are the choice's first tokens, so the logprobs of an echoed prompt come before them."""
        num_top = self._checked.logprobs
        if num_top is None:
            return None
        fields = completion_logprobs(self._names, tokens, shift=len(self._echo(prompt_index)))
        if self._echoes is None or not begins:
            return fields
        prompt_ids = self._generation.prompt_token_ids(prompt_index)
        scores = self._generation.prompt_logprobs(prompt_index)
        prompt = list(scored_prompt(self._call.model.tokenizer, prompt_ids, scores, num_top))
        before = completion_logprobs(self._names, prompt)
        return {name: before[name] + fields[name] for name in fields}
