"""News of a chat choice -> chunks of its stream, or its whole message."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

import orjson

from service.api.answers.choice_text import Piece
from service.api.answers.chunk_frames import TEXT_PLACE, ChunkFrames
from service.api.answers.generation import CollectedChoice
from service.core.request import FinishReason
from service.protocol.chat import AssistantMessage, MadeFunction, MadeToolCall
from service.text.chat_output import OutputDelta, ReasoningDelta
from service.text.tool_calls import CallDelta, TextDelta, ToolStyle

PLAIN_CONTENT = b'"delta":{"content":%b}' % TEXT_PLACE
"""`ChunkFrames.around_text`."""


def new_call_id(style: ToolStyle | None) -> str:
    """Mistral's templates take no ids but nine letters and digits."""
    return secrets.token_hex(5)[:9] if style is ToolStyle.MISTRAL else f"call_{secrets.token_hex(12)}"


def chat_frames(
    chunks: ChunkFrames,
    make_call_id: Callable[[], str],
    piece: Piece,
    logprobs_of: Callable[[Piece], bytes] = lambda piece: b"null",
) -> bytes:
    """A choice begins with its role and ends with an empty delta; its ids and logprobs go with the first frame after
    the role."""
    frames = []
    ids, logprobs = chunks.ids_of(piece), logprobs_of(piece)
    if piece.is_first:
        frames.append(chunks.choice(piece.choice_index, b'"delta":{"role":"assistant","content":""}'))
    for delta in _delta_fields(piece, make_call_id):
        frames.append(chunks.choice(piece.choice_index, b'"delta":' + delta, ids=ids, logprobs=logprobs))
        ids, logprobs = b"", b"null"
    if piece.finish_reason is not None:
        called = piece.has_calls and piece.finish_reason is FinishReason.STOP
        end = chunks.end_of(piece, "tool_calls" if called else None)
        frames.append(chunks.choice(piece.choice_index, b'"delta":{}', end, ids, logprobs))
    return b"".join(frames)


def assemble_message(choice: CollectedChoice, make_call_id: Callable[[], str]) -> AssistantMessage:
    """The whole message. Without content it is null if there are calls, else empty."""
    content = choice.text + "".join([delta.text for delta in choice.deltas if isinstance(delta, TextDelta)])
    reasoning = "".join([delta.text for delta in choice.deltas if isinstance(delta, ReasoningDelta)])
    calls = _made_calls([delta for delta in choice.deltas if isinstance(delta, CallDelta)], make_call_id)
    message = AssistantMessage(role="assistant", content=content or (None if calls else ""), refusal=None)
    if reasoning:
        message.reasoning_content = reasoning
    if calls:
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


def _delta_fields(piece: Piece, make_call_id: Callable[[], str]) -> list[bytes]:
    if piece.text:
        return [b'{"content":%s}' % orjson.dumps(piece.text)]
    return [_delta_field(delta, make_call_id) for delta in _merged(piece.deltas)]


def _delta_field(delta: OutputDelta, make_call_id: Callable[[], str]) -> bytes:
    if isinstance(delta, ReasoningDelta):
        return b'{"reasoning_content":%s}' % orjson.dumps(delta.text)
    if isinstance(delta, TextDelta):
        return b'{"content":%s}' % orjson.dumps(delta.text)
    call: dict[str, object] = {"index": delta.call_index}
    if delta.name is not None:
        call |= {"id": make_call_id(), "type": "function"}
        call["function"] = {"name": delta.name, "arguments": delta.arguments}
    else:
        call["function"] = {"arguments": delta.arguments}
    return orjson.dumps({"tool_calls": [call]})


def _merged(deltas: Sequence[OutputDelta]) -> list[OutputDelta]:
    """Neighbours of one kind as one: tokens that come together go out together."""
    runs: list[list[OutputDelta]] = []
    for delta in deltas:
        begins_call = isinstance(delta, CallDelta) and delta.name is not None
        if runs and type(runs[-1][0]) is type(delta) and not begins_call:
            runs[-1].append(delta)
        else:
            runs.append([delta])
    return [_joined(run) for run in runs]


def _joined(run: Sequence[OutputDelta]) -> OutputDelta:
    first = run[0]
    if isinstance(first, CallDelta):
        return first._replace(arguments="".join([each.arguments for each in run if isinstance(each, CallDelta)]))
    return first._replace(text="".join([each.text for each in run if not isinstance(each, CallDelta)]))
