"""OpenAI's wire form of an answer: frames of a stream, made of constant bytes without an object per token, and the JSON
of a whole answer."""

from __future__ import annotations

import orjson

from service.api.answers.choice_text import Piece
from service.api.answers.generation import Generation
from service.api.answers.sse_frames import DONE, data_frame
from service.api.calls.prepared_call import PreparedCall
from service.api.error_responses import error_body
from service.errors import RequestError
from service.protocol.chat import ChatResponse
from service.protocol.completions import CompletionResponse

NOT_ENDED = b'"finish_reason":null'
TEXT_PLACE = b"\0"
"""Cannot occur in JSON."""
_NO_CHOICES = '"choices":[]'


class ChunkFrames:
    """Makes the chunks of one call. All have the same id, object, created and model.

    With include_usage each chunk says `usage: null`, and one last chunk without choices has the usage; with
    continuous_usage_stats, which needs include_usage, each chunk has the usage so far.
    """

    def __init__(self, kind: bytes, call: PreparedCall, generation: Generation) -> None:
        self._call = call.checked
        self._generation = generation
        self._head = b'data: {"id":%s,"object":"%s","created":%d,"model":%s,"system_fingerprint":%s,"choices":[' % (
            orjson.dumps(call.head.call_id),
            kind,
            call.head.created,
            orjson.dumps(self._call.model),
            orjson.dumps(call.model.system_fingerprint),
        )

    def choice(
        self, index: int, content: bytes, end: bytes = NOT_ENDED, ids: bytes = b"", logprobs: bytes = b"null"
    ) -> bytes:
        """One choice's chunk. `content` is its `"text": ...` or `"delta": ...`, `end` and `ids` come from `end_of` and
        `ids_of`."""
        usage = b"" if not self._call.include_usage else self._usage_so_far()
        return b'%s{"index":%d,%s,"logprobs":%s,%s%s}]%s}\n\n' % (self._head, index, content, logprobs, end, ids, usage)

    def first(self, index: int, content: bytes, beside: bytes) -> bytes:
        """The chunk that begins a choice, before any of its tokens. beside: JSON members after `choices`."""
        usage = b"" if not self._call.include_usage else self._usage_before()
        return b'%s{"index":%d,%s,"logprobs":null,%s}]%s%s}\n\n' % (
            self._head,
            index,
            content,
            NOT_ENDED,
            beside,
            usage,
        )

    def around_text(self, content: bytes) -> tuple[bytes, bytes] | None:
        """The bytes before and after the text in a chunk of choice 0 that has nothing but text, in the middle of its
        stream; None if chunks of this call have more. content: as in `choice`, with TEXT_PLACE for the text's JSON."""
        call = self._call
        if call.return_token_ids or call.continuous_usage or call.logprobs is not None:
            return None
        before, after = self.choice(0, content).split(TEXT_PLACE)
        return before, after

    def end_of(self, piece: Piece, finish_reason: str | None = None) -> bytes:
        """The JSON of the choice's finish and stop reasons. finish_reason: if the API has another word than the
        engine."""
        if piece.finish_reason is None:
            return NOT_ENDED
        reason = finish_reason or piece.finish_reason.value
        return b'"finish_reason":"%s","stop_reason":%s' % (reason.encode(), orjson.dumps(piece.stop_reason))

    def ids_of(self, piece: Piece) -> bytes:
        """`return_token_ids`: the piece's ids; else nothing."""
        if not self._call.return_token_ids:
            return b""
        return b',"token_ids":' + orjson.dumps(piece.token_ids)

    def prompt_ids_of(self, piece: Piece) -> bytes:
        """`return_token_ids`: with the choice's first piece the prompt's ids; else nothing."""
        if not (self._call.return_token_ids and piece.is_first):
            return b""
        return b',"prompt_token_ids":' + orjson.dumps(self._generation.prompt_token_ids(piece.prompt_index))

    def end(self, error: RequestError | None = None) -> bytes:
        """What follows the last piece: the chunk of the usage, if the client asked for it, or an error event."""
        return (self.usage() if error is None else data_frame(error_body(error))) + DONE

    def usage(self) -> bytes:
        """The chunk after the last piece, if the client asked for it."""
        if not self._call.include_usage:
            return b""
        return b'%s],"usage":%s}\n\n' % (self._head, self._usage_json())

    def _usage_so_far(self) -> bytes:
        if self._call.continuous_usage:
            return b',"usage":' + self._usage_json()
        return b',"usage":null'

    def _usage_before(self) -> bytes:
        """Usage before the choice's first token: no output tokens are counted, though some may have come."""
        if not self._call.continuous_usage:
            return b',"usage":null'
        usage = self._generation.usage_fields()
        return b',"usage":' + orjson.dumps({**usage, "completion_tokens": 0, "total_tokens": usage["prompt_tokens"]})

    def _usage_json(self) -> bytes:
        return orjson.dumps(self._generation.usage_fields())


def whole_json(answer: ChatResponse | CompletionResponse) -> str:
    """The answer's JSON. Made choice by choice: each is one call during which no other thread runs, and a choice with
    the logprobs of a long prompt takes a tenth of a second."""
    around = answer.model_copy(update={"choices": []}).model_dump_json(exclude_unset=True)
    before, after = around.split(_NO_CHOICES, 1)  # no text holds it: its quotation marks are escaped
    choices = ",".join(choice.model_dump_json(exclude_unset=True) for choice in answer.choices)
    return f'{before}"choices":[{choices}]{after}'
