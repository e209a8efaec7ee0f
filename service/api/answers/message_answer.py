"""The answer of Anthropic's API: the events of its stream, or a whole message."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from service.api.answers.call_ids import new_call_id
from service.api.answers.choice_text import Piece
from service.api.answers.content_blocks import TEXT_DELTA, ContentBlocks, event_frame, whole_blocks
from service.api.answers.generation import CollectedChoice, Generation
from service.api.calls.prepared_call import PreparedCall
from service.api.messages_errors import messages_error_body
from service.core.request import FinishReason
from service.errors import RequestError
from service.protocol.messages import (
    Message,
    MessageEnd,
    MessagesUsage,
    OutputTokensDetails,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from service.text.tool_calls import CallDelta

_TEXT_PLACE = b"\0"
"""Cannot occur in JSON."""


class MessageAnswer:
    """An `AnswerForm`. shows_thinking: see `ContentBlocks`."""

    writes_logprobs = False
    keep_alive = event_frame("ping", {})

    def __init__(self, call: PreparedCall, generation: Generation, *, shows_thinking: bool = True) -> None:
        self._call = call
        self._generation = generation
        self._shows_thinking = shows_thinking
        self._make_call_id = partial(new_call_id, call.tool_style, "toolu_")
        self._blocks = ContentBlocks(self._make_call_id, shows_thinking=shows_thinking)
        self._end = MessageEnd(stop_reason="end_turn", stop_sequence=None)
        before, after = (TEXT_DELTA % (0, _TEXT_PLACE)).split(_TEXT_PLACE)
        self.around_text: tuple[bytes, bytes] | None = (before, after)

    def begin(self) -> bytes:
        """The number of cached tokens comes at the end, when it is known."""
        return event_frame("message_start", {"message": self._message([], None).model_dump()})

    def frame(self, piece: Piece) -> bytes:
        frame = self._blocks.text(piece.text) if piece.text else self._blocks.deltas(piece.deltas)
        if piece.finish_reason is not None:
            self._end = self._end_of(piece.finish_reason, piece.stop_reason, has_calls=piece.has_calls)
            frame += self._blocks.close()
        return frame

    def num_logprobs(self, piece: Piece) -> int:
        return 0

    def end(self, error: RequestError | None = None) -> bytes:
        if error is not None:
            return b"event: error\ndata: %b\n\n" % messages_error_body(error, self._call.head.request_id)
        end = {"delta": self._end.model_dump(), "usage": self._usage().model_dump()}
        return event_frame("message_delta", end) + event_frame("message_stop", {})

    def whole(self, choices: Sequence[CollectedChoice]) -> str:
        (choice,) = choices
        blocks = whole_blocks(choice.text, choice.deltas, self._make_call_id, shows_thinking=self._shows_thinking)
        has_calls = any(isinstance(delta, CallDelta) for delta in choice.deltas)
        end = self._end_of(choice.finish_reason, choice.stop_reason, has_calls=has_calls)
        return self._message(blocks, end).model_dump_json()

    def _message(self, content: list[TextBlock | ThinkingBlock | ToolUseBlock], end: MessageEnd | None) -> Message:
        return Message(
            id=self._call.head.call_id,
            model=self._call.checked.model,
            content=content,
            stop_reason=None if end is None else end.stop_reason,
            stop_sequence=None if end is None else end.stop_sequence,
            usage=self._usage(),
        )

    def _end_of(self, reason: FinishReason, stop: str | int | None, *, has_calls: bool) -> MessageEnd:
        """A stop string wins over calls, since it may have cut one. Output that was cut before `max_tokens` has reached
        the end of the context."""
        if reason is FinishReason.LENGTH:
            is_all = self._usage().output_tokens >= (self._call.prompts.default_max_tokens or 0)
            cut: StopReason = "max_tokens" if is_all else "model_context_window_exceeded"
            return MessageEnd(stop_reason=cut, stop_sequence=None)
        if isinstance(stop, str):
            return MessageEnd(stop_reason="stop_sequence", stop_sequence=stop)
        return MessageEnd(stop_reason="tool_use" if has_calls else "end_turn", stop_sequence=None)

    def _usage(self) -> MessagesUsage:
        """Tokens so far; cached prompt tokens are counted apart, once they are known."""
        fields = self._generation.usage_fields()
        cached = (fields["prompt_tokens_details"] or {}).get("cached_tokens", 0)
        details = fields.get("completion_tokens_details")
        return MessagesUsage(
            input_tokens=fields["prompt_tokens"] - cached,
            cache_creation_input_tokens=0,
            cache_read_input_tokens=cached,
            output_tokens=fields["completion_tokens"],
            output_tokens_details=None
            if details is None
            else OutputTokensDetails(thinking_tokens=details["reasoning_tokens"]),
        )
