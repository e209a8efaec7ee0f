"""The answer to a chat: chunks of its stream, or its whole message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import orjson

from service.api.answers.call_ids import new_call_id
from service.api.answers.choice_text import Piece, ScoredToken
from service.api.answers.chunk_frames import TEXT_PLACE, ChunkFrames, whole_json
from service.api.answers.generation import CollectedChoice, Generation
from service.api.answers.sse_frames import KEEP_ALIVE
from service.api.answers.token_logprobs import TokenNames, chat_logprobs, prompt_logprobs
from service.api.calls.prepared_call import PreparedCall
from service.core.request import FinishReason
from service.errors import RequestError
from service.protocol.chat import (
    AssistantMessage,
    ChatChoice,
    ChatLogprobs,
    ChatResponse,
    MadeFunction,
    MadeToolCall,
)
from service.protocol.chat import (
    FinishReason as ChatFinishReason,
)
from service.text.chat_output import OutputDelta, ReasoningDelta, merged
from service.text.tool_calls import CallDelta, TextDelta


class ChatAnswer:
    """An `AnswerForm`. calls_functions: the one call is written as `function_call`, the form that OpenAI had before
    tools."""

    keep_alive = KEEP_ALIVE

    def __init__(self, call: PreparedCall, generation: Generation, *, calls_functions: bool = False) -> None:
        self._call = call
        self._generation = generation
        self.writes_logprobs = call.checked.logprobs is not None
        self._make_call_id = partial(new_call_id, call.tool_style)
        self._calls_functions = calls_functions
        self._echoes = call.prompts.echoes
        self._names = TokenNames(call.model.tokenizer, as_ids=call.checked.tokens_as_ids)
        self._chunks = ChunkFrames(b"chat.completion.chunk", call, generation)
        self.around_text = self._chunks.around_text(b'"delta":{"content":%b}' % TEXT_PLACE)

    def begin(self) -> bytes:
        return b""

    def frame(self, piece: Piece) -> bytes:
        """A choice begins with its role and ends with an empty delta; its ids and logprobs go with the first frame
        after the role."""
        chunks, frames = self._chunks, []
        ids, logprobs = chunks.ids_of(piece), self._logprobs_json(piece)
        if piece.is_first:
            frames += self._beginning(piece)
        for delta in self._delta_fields(piece):
            frames.append(chunks.choice(piece.choice_index, b'"delta":' + delta, ids=ids, logprobs=logprobs))
            ids, logprobs = b"", b"null"
        if piece.finish_reason is not None:
            end = chunks.end_of(piece, self._finish_reason(piece, has_calls=piece.has_calls))
            frames.append(chunks.choice(piece.choice_index, b'"delta":{}', end, ids, logprobs))
        return b"".join(frames)

    def _beginning(self, piece: Piece) -> list[bytes]:
        """The role, beside the prompt's ids if they are asked for; then the message that is continued, if it is."""
        prompt_ids = self._chunks.prompt_ids_of(piece) if piece.choice_index == 0 else b""
        frames = [
            self._chunks.first(piece.choice_index, b'"delta":{"role":"assistant","content":""}', prompt_ids),
        ]
        if echo := self._echo(0):
            delta = b'"delta":{"content":%s}' % orjson.dumps(echo)
            frames.append(self._chunks.first(piece.choice_index, delta, b""))
        return frames

    def _echo(self, prompt_index: int) -> str:
        return "" if self._echoes is None else self._echoes[prompt_index]

    def num_logprobs(self, piece: Piece) -> int:
        return len(piece.scored) * ((self._call.checked.logprobs or 0) + 1)

    def end(self, error: RequestError | None = None) -> bytes:
        return self._chunks.end(error)

    def whole(self, choices: Sequence[CollectedChoice]) -> str:
        call = self._call
        answer = ChatResponse(
            id=call.head.call_id,
            object="chat.completion",
            created=call.head.created,
            model=call.checked.model,
            system_fingerprint=call.model.system_fingerprint,
            choices=[self._choice(choice) for choice in choices],
            usage=self._generation.usage,
            service_tier=call.checked.answered_tier,
            prompt_logprobs=None,
            prompt_token_ids=self._prompt_ids(),
        )
        if call.checked.prompt_logprobs is not None:
            prompt, scores = self._generation.prompt_token_ids(0), self._generation.prompt_logprobs(0)
            answer.prompt_logprobs = prompt_logprobs(self._names, prompt, scores)
        return whole_json(answer)

    def _prompt_ids(self) -> list[int] | None:
        """The prompt's ids, if the call has one prompt and they are asked for."""
        is_one = len(self._call.prompts.token_ids) == 1
        return self._generation.prompt_token_ids(0) if self._call.checked.return_token_ids and is_one else None

    def _choice(self, choice: CollectedChoice) -> ChatChoice:
        message = assemble_message(choice, self._make_call_id, as_function=self._calls_functions)
        has_calls = message.tool_calls is not None or message.function_call is not None
        if echo := self._echo(choice.prompt_index):
            message.content = echo + (message.content or "")
        logprobs = None
        if self.writes_logprobs:
            logprobs = ChatLogprobs(**self._logprobs(choice.scored))
        return ChatChoice(
            index=choice.index,
            message=message,
            logprobs=logprobs,
            finish_reason=self._finish_reason(choice, has_calls=has_calls),
            stop_reason=choice.stop_reason,
            token_ids=choice.token_ids if self._call.checked.return_token_ids else None,
        )

    def _logprobs_json(self, piece: Piece) -> bytes:
        return orjson.dumps(self._logprobs(piece.scored)) if piece.scored else b"null"

    def _logprobs(self, scored: Sequence[ScoredToken]) -> dict[str, Any]:
        """Where tokens were asked for by their ids, the sampled token is always listed among them, as vLLM does."""
        asked = self._call.checked.sampling.logprob_token_ids
        return chat_logprobs(self._names, scored, names_chosen=bool(asked))

    def _finish_reason(self, last: Piece | CollectedChoice, *, has_calls: bool) -> ChatFinishReason:
        """Of a choice that has ended. If the last call was cut off, it does not count as a call."""
        assert last.finish_reason is not None
        if not has_calls or last.call_is_cut or last.finish_reason is not FinishReason.STOP:
            return last.finish_reason.value
        return "function_call" if self._calls_functions else "tool_calls"

    def _delta_fields(self, piece: Piece) -> list[bytes]:
        if piece.text:
            return [b'{"content":%s}' % orjson.dumps(piece.text)]
        return [self._delta_field(delta) for delta in merged(piece.deltas)]

    def _delta_field(self, delta: OutputDelta) -> bytes:
        if isinstance(delta, ReasoningDelta):
            text = orjson.dumps(delta.text)
            return b'{"reasoning":%s,"reasoning_content":%s}' % (text, text)
        if isinstance(delta, TextDelta):
            return b'{"content":%s}' % orjson.dumps(delta.text)
        if self._calls_functions:
            return orjson.dumps({"function_call": _function_delta(delta)})
        begins = {} if delta.name is None else {"id": self._make_call_id(), "type": "function"}
        call = {"index": delta.call_index, **begins, "function": _function_fields(delta)}
        return orjson.dumps({"tool_calls": [call]})


def assemble_message(
    choice: CollectedChoice, make_call_id: Callable[[], str], *, as_function: bool = False
) -> AssistantMessage:
    """The whole message. Without content, `content` is null if there are calls, else empty. as_function:
    `function_call` instead of `tool_calls`, which has room for the first call only."""
    content = choice.text + "".join([delta.text for delta in choice.deltas if isinstance(delta, TextDelta)])
    reasoning = "".join([delta.text for delta in choice.deltas if isinstance(delta, ReasoningDelta)])
    calls = _made_calls([delta for delta in choice.deltas if isinstance(delta, CallDelta)], make_call_id)
    message = AssistantMessage(
        role="assistant",
        content=content or (None if calls else ""),
        refusal=None,
        reasoning=reasoning or None,
        reasoning_content=reasoning or None,
    )
    if calls and as_function:
        message.function_call = calls[0].function
    elif calls:
        message.tool_calls = calls
    return message


def _made_calls(deltas: Sequence[CallDelta], make_call_id: Callable[[], str]) -> list[MadeToolCall]:
    names = [delta.name for delta in deltas if delta.name is not None]
    arguments: list[list[str]] = [[] for _ in names]
    for delta in deltas:
        arguments[delta.call_index].append(delta.arguments)
    return [
        MadeToolCall(id=make_call_id(), type="function", function=MadeFunction(name=name, arguments="".join(texts)))
        for name, texts in zip(names, arguments, strict=True)
    ]


def _function_fields(delta: CallDelta) -> dict[str, str]:
    named = {} if delta.name is None else {"name": delta.name}
    return {**named, "arguments": delta.arguments}


def _function_delta(delta: CallDelta) -> dict[str, str]:
    """Says nothing of any call but the first; a client's own grammar may produce more. The frame is sent all the same,
    since ids and log probabilities go with it."""
    return _function_fields(delta) if delta.call_index == 0 else {"arguments": ""}
