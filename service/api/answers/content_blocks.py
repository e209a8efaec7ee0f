"""A model's output as the content blocks of Anthropic's API: events of a stream, or whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

import orjson

from service.protocol.messages import TextBlock, ThinkingBlock, ToolUseBlock
from service.text.call_arguments import arguments_object
from service.text.chat_output import OutputDelta, ReasoningDelta, merged
from service.text.tool_calls import CallDelta, TextDelta

TEXT_DELTA = (
    b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
    b'"delta":{"type":"text_delta","text":%b}}\n\n'
)
"""To be filled with the index of the block and the JSON of the text."""


def event_frame(kind: str, fields: dict[str, Any]) -> bytes:
    """One event. Its type stands twice: in the `event` line and in the data."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), orjson.dumps({"type": kind, **fields}))


class ContentBlocks:
    """The blocks of one stream. One block is open at a time; output of another kind closes it and opens the next.

    make_call_id: called for each tool call. shows_thinking: if False, a thinking block has only its signature.
    """

    def __init__(self, make_call_id: Callable[[], str], *, shows_thinking: bool) -> None:
        self._make_call_id = make_call_id
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open: Literal["text", "thinking", "tool_use"] | None = None
        self._signature = hashlib.sha256()

    def text(self, text: str) -> bytes:
        begin = b"" if self._open == "text" else self._begin("text", {"text": ""})
        return begin + TEXT_DELTA % (self._index, orjson.dumps(text))

    def deltas(self, deltas: Sequence[OutputDelta]) -> bytes:
        return b"".join([self._delta(delta) for delta in merged(deltas)])

    def close(self) -> bytes:
        """The end of the open block; empty if none is open."""
        if self._open is None:
            return b""
        end = b""
        if self._open == "thinking":
            end = self._news({"type": "signature_delta", "signature": self._signature.hexdigest()})
        self._open = None
        return end + event_frame("content_block_stop", {"index": self._index})

    def _delta(self, delta: OutputDelta) -> bytes:
        if isinstance(delta, TextDelta):
            return self.text(delta.text)
        if isinstance(delta, ReasoningDelta):
            return self._thought(delta.text)
        begin = b""
        if delta.name is not None:
            call = {"id": self._make_call_id(), "name": delta.name, "input": {}}
            begin = self._begin("tool_use", call)
        if not delta.arguments:
            return begin
        return begin + self._news({"type": "input_json_delta", "partial_json": delta.arguments})

    def _thought(self, text: str) -> bytes:
        begin = b""
        if self._open != "thinking":
            begin = self._begin("thinking", {"thinking": "", "signature": ""})
            self._signature = hashlib.sha256()
        self._signature.update(text.encode())
        if not self._shows_thinking:
            return begin
        return begin + self._news({"type": "thinking_delta", "thinking": text})

    def _begin(self, kind: Literal["text", "thinking", "tool_use"], fields: dict[str, Any]) -> bytes:
        end = self.close()
        self._index += 1
        self._open = kind
        block = {"type": kind, **fields}
        return end + event_frame("content_block_start", {"index": self._index, "content_block": block})

    def _news(self, delta: dict[str, str]) -> bytes:
        return event_frame("content_block_delta", {"index": self._index, "delta": delta})


def whole_blocks(
    text: str, deltas: Sequence[OutputDelta], make_call_id: Callable[[], str], *, shows_thinking: bool
) -> list[TextBlock | ThinkingBlock | ToolUseBlock]:
    """The blocks that a stream of the same output has. text: of an answer without deltas."""
    blocks: list[TextBlock | ThinkingBlock | ToolUseBlock] = [TextBlock(text=text)] if text else []
    for delta in merged(deltas):
        if isinstance(delta, TextDelta):
            blocks.append(TextBlock(text=delta.text))
        elif isinstance(delta, ReasoningDelta):
            signature = hashlib.sha256(delta.text.encode()).hexdigest()
            blocks.append(ThinkingBlock(thinking=delta.text if shows_thinking else "", signature=signature))
        else:
            blocks.append(_tool_use(delta, make_call_id()))
    return blocks


def _tool_use(call: CallDelta, call_id: str) -> ToolUseBlock:
    arguments = arguments_object(call.arguments, keeps_cut_text=False)
    return ToolUseBlock(id=call_id, name=call.name or "", input=arguments)
