"""Frames of a streamed call: constant bytes around the few that change (no object per token)."""

from __future__ import annotations

import orjson

from service.api.choice_text import Piece
from service.api.generation import Generation
from service.api.sse import data_frame
from service.api.validation import CheckedCall
from service.core.request import FinishReason


class ChunkFrames:
    """Makes the chunks of one call. All have the same id, object, created and model.

    With include_usage each says `usage: null`, and one last chunk without choices has the numbers; with
    continuous_usage_stats each has the numbers so far.
    """

    def __init__(self, kind: bytes, call: CheckedCall, generation: Generation, call_id: str, created: int) -> None:
        self._call = call
        self._generation = generation
        self._head = b'{"id":%s,"object":"%s","created":%d,"model":%s,"choices":[' % (
            orjson.dumps(call_id),
            kind,
            created,
            orjson.dumps(call.model),
        )

    def choice(self, index: int, content: bytes, finish_reason: FinishReason | None, ids: bytes = b"") -> bytes:
        """One choice's chunk. `content` is its `"text": ...` or `"delta": ...`, `ids` comes from `ids_of`."""
        reason = b"null" if finish_reason is None else b'"%s"' % finish_reason.encode()
        return data_frame(
            b'%s{"index":%d,%s,"logprobs":null,"finish_reason":%s%s}]%s}'
            % (self._head, index, content, reason, ids, self._usage_so_far())
        )

    def ids_of(self, piece: Piece) -> bytes:
        """`return_token_ids`: the piece's ids, and with the choice's first piece the prompt's; else nothing."""
        if not self._call.return_token_ids:
            return b""
        ids = b',"token_ids":' + orjson.dumps(piece.token_ids)
        if piece.is_first:
            ids += b',"prompt_token_ids":' + orjson.dumps(self._generation.prompt_token_ids(piece.prompt_index))
        return ids

    def usage(self) -> bytes:
        """The chunk after the last piece, if the client asked for it."""
        if not self._call.include_usage:
            return b""
        return data_frame(b'%s],"usage":%s}' % (self._head, self._usage_json()))

    def _usage_so_far(self) -> bytes:
        if self._call.continuous_usage:
            return b',"usage":' + self._usage_json()
        return b',"usage":null' if self._call.include_usage else b""

    def _usage_json(self) -> bytes:
        return self._generation.usage.model_dump_json().encode()
