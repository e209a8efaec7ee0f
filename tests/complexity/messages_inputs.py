"""Worst inputs of Anthropic's API: a conversation on its way to a chat's, and an answer on its way back."""

from __future__ import annotations

from typing import Any

from service.api.answers.choice_text import Piece
from service.api.answers.content_blocks import ContentBlocks, whole_blocks
from service.api.answers.generation import CollectedChoice
from service.api.answers.message_answer import MessageAnswer
from service.api.calls.member_limits import check_members
from service.api.calls.message_turns import chat_messages
from service.api.calls.messages_call import _prompt, _unknown_fields
from service.api.calls.wire_parsing import parse
from service.core.request import FinishReason
from service.protocol.messages import MessagesPromptFields, MessagesRequest
from service.text.tool_calls import CallDelta
from tests.complexity.answer_inputs import _deltas, _Engine, _generation, _prepared
from tests.complexity.door_inputs import _BODY, _TEMPLATE, CONFIG, _door
from tests.complexity.growth import Work, WorstInput
from tests.complexity.text_inputs import MOST_TOKENS

_TEXT = {"type": "text", "text": "x"}


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}], **fields}


def _session(n: int) -> list[dict[str, Any]]:
    """So many messages, of all kinds of block, each with a field that nobody knows."""
    said = [{**_TEXT, "x": 1}, {"type": "thinking", "thinking": "x", "y": 1}]
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{**_TEXT, "z": 1}], "is_error": True}
    round_ = [
        {"role": "assistant", "content": [*said, call]},
        {"role": "system", "content": "x"},
        {"role": "user", "content": [result, _TEXT]},
        {"role": "user", "content": "x"},
    ]
    return [message for _ in range(n // 4) for message in round_]


def _read(n: int) -> Work:
    fields = parse(MessagesPromptFields, _body(messages=_session(n), system=[_TEXT] * n))

    def work() -> None:
        _prompt(fields, _TEMPLATE, CONFIG)
        _unknown_fields(fields)

    return work


def _one_turn(n: int) -> Work:
    """Neighbours of one role are one message."""
    fields = parse(MessagesPromptFields, _body(messages=[{"role": "user", "content": [_TEXT]}] * n))
    return lambda: chat_messages(fields, CONFIG)


def _long_input(n: int) -> Work:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [[]] * (n // 3)}}
    fields = parse(MessagesPromptFields, _body(messages=[{"role": "assistant", "content": [call]}]))
    return lambda: chat_messages(fields, CONFIG)


def _results(n: int) -> Work:
    """More parts of results than may be: they are counted before anything is looked at."""
    result = {"type": "tool_result", "tool_use_id": "t", "content": [_TEXT] * n}
    body = _body(messages=[{"role": "user", "content": [result]}])
    return lambda: check_members(body, CONFIG)


def _answer() -> MessageAnswer:
    return MessageAnswer(_prepared(), _generation(_Engine(), 9))


def _framed(n: int) -> Work:
    answer, piece = _answer(), Piece(0, 0, "", [], True, FinishReason.STOP, deltas=_deltas(n), has_calls=True)
    return lambda: answer.frame(piece)


def _streamed(n: int) -> Work:
    """A delta a frame."""
    blocks, deltas = ContentBlocks(lambda: "t", shows_thinking=True), _deltas(n)

    def work() -> None:
        for delta in deltas:
            blocks.deltas([delta])

    return work


def _whole(n: int) -> Work:
    choice = CollectedChoice(0, 0, "", [], [], FinishReason.STOP, deltas=_deltas(n))
    answer = _answer()
    return lambda: answer.whole([choice])


def _arguments(text: str) -> Work:
    deltas = [CallDelta(0, "f", text)]
    return lambda: whole_blocks("", deltas, lambda: "t", shows_thinking=True)


MESSAGES_INPUTS = [
    WorstInput(
        "Anthropic's messages: many, at the door",
        ("api/calls/wire_parsing.py", "api/calls/member_limits.py", "protocol/messages.py"),
        lambda n: _door(MessagesRequest, _body(messages=_session(n))),
        1_000,
        CONFIG.max_messages // 2,
        "loop",
    ),
    WorstInput(
        "Anthropic's messages: many, of all kinds of block",
        ("api/calls/message_turns.py", "api/calls/messages_call.py"),
        _read,
        1_000,
        CONFIG.max_messages // 2,
        "loop",
    ),
    WorstInput(
        "Anthropic's messages: all of one role",
        ("api/calls/message_turns.py",),
        _one_turn,
        1_000,
        CONFIG.max_messages,
        "loop",
    ),
    WorstInput(
        "Anthropic's messages: a call with many values",
        ("api/calls/message_turns.py",),
        _long_input,
        100_000,
        CONFIG.max_arguments_characters,
        "loop",
    ),
    WorstInput(
        "Anthropic's messages: parts of results, more than may be",
        ("api/calls/member_limits.py",),
        _results,
        100_000,
        _BODY // 8,
        "loop",
    ),
    WorstInput(
        "Anthropic's answer: many deltas in one frame",
        ("api/answers/message_answer.py", "api/answers/content_blocks.py"),
        _framed,
        2_000,
        4_096,
        "loop",
    ),
    WorstInput(
        "Anthropic's answer: a delta a frame",
        ("api/answers/content_blocks.py",),
        _streamed,
        1_000,
        MOST_TOKENS,
        "stream",
    ),
    WorstInput(
        "Anthropic's answer: many deltas",
        ("api/answers/message_answer.py", "api/answers/content_blocks.py"),
        _whole,
        2_000,
        MOST_TOKENS,
        "pool",
    ),
    WorstInput(
        "Anthropic's answer: arguments of many values, cut",
        ("api/answers/content_blocks.py",),
        lambda n: _arguments('{"a":[' + "[]," * (n // 3)),
        50_000,
        MOST_TOKENS,
        "pool",
    ),
    WorstInput(
        "Anthropic's answer: deep arguments, cut",
        ("api/answers/content_blocks.py",),
        lambda n: _arguments('{"a":' * (n // 5)),
        50_000,
        MOST_TOKENS,
        "pool",
    ),
]
