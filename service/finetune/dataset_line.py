"""Parses and checks one line of a training file, without a model: a chat, or a prompt with its completion.

The formats are OpenAI's: `{"messages": [...], "tools": [...]}`, where an assistant message may have a `weight` of 0
or 1, and `{"prompt": "...", "completion": "..."}`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, TypeVar

import orjson
from pydantic import Field, ValidationError

from service.errors import HeadraceError
from service.protocol.chat import ChatMessage, Tool
from service.protocol.generation import Members, WireRequest

MAX_LINE_BYTES = 256 * 1024
"""About 64,000 tokens, more than an example may have. Parsing so much holds the interpreter lock for 0.1 s at worst."""
MAX_MESSAGES = 512
"""A chat is rendered once per trained turn; for so many messages that takes 2 s."""
MAX_TOOLS = 128
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MAX_SHOWN = 64

Form = TypeVar("Form", bound=WireRequest)


class DatasetError(HeadraceError):
    """A training file cannot be used. line: from 1; None if no single line is at fault. reason: without line number."""

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(reason if line is None else f"line {line}: {reason}")
        self.line = line
        self.reason = reason


class TrainingMessage(ChatMessage):
    """weight: only for assistant messages. 0: do not train on this message."""

    weight: Annotated[int, Field(ge=0, le=1)] | None = None


class TrainingChat(WireRequest):
    messages: Members[TrainingMessage]
    tools: Members[Tool] | None = None
    parallel_tool_calls: bool | None = None

    def is_trained(self, index: int) -> bool:
        message = self.messages[index]
        return message.role == "assistant" and message.weight != 0


class PromptCompletion(WireRequest):
    prompt: str
    completion: str


def read_line(line: bytes, number: int) -> TrainingChat | PromptCompletion:
    """Parse a line. Raises DatasetError naming the line, and the field if one is at fault."""
    try:
        return _read(line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line)
    except _Fault as fault:
        raise DatasetError(number, str(fault)) from None


_TOO_LONG = f"is longer than {MAX_LINE_BYTES} bytes"


class _Fault(Exception):
    """The message says what is wrong with the line."""


def _read(line: bytes) -> TrainingChat | PromptCompletion:
    if len(line) > MAX_LINE_BYTES:
        raise _Fault(_TOO_LONG)
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise _Fault(f"is not JSON: {error.msg} (column {error.colno})") from None
    if not isinstance(value, dict):
        raise _Fault("is not a JSON object")
    is_chat, is_pair = "messages" in value, "prompt" in value or "completion" in value
    if is_chat == is_pair:
        raise _Fault("must have either messages, or prompt and completion")
    return _checked_pair(_shaped(PromptCompletion, value)) if is_pair else _checked_chat(_shaped_chat(value))


def _shaped_chat(value: dict[str, object]) -> TrainingChat:
    for name, most in (("messages", MAX_MESSAGES), ("tools", MAX_TOOLS)):
        members = value.get(name)
        if isinstance(members, list) and len(members) > most:
            raise _Fault(f"{name} has {len(members)} members; at most {most} are allowed")
    return _shaped(TrainingChat, value)


def _shaped(form: type[Form], value: dict[str, object]) -> Form:
    try:
        shaped = form.model_validate(value)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False, include_context=False)
        deepest = max(details, key=lambda each: len(each["loc"]))
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part[:_MAX_SHOWN]}" for part in deepest["loc"])
        raise _Fault(f"{where.lstrip('.')}: {deepest['msg']}") from None
    unknown = next(_unknown_fields(shaped, ""), None)
    if unknown is not None:
        raise _Fault(f"{unknown} is not a known field")
    return shaped


def _unknown_fields(shape: WireRequest, where: str) -> Iterator[str]:
    """Names of unknown fields. Tools are not checked: the template shows all of their fields."""
    for name, value in (shape.model_extra or {}).items():
        if value is not None:
            yield f"{where}{name[:_MAX_SHOWN]}"
    for name in type(shape).model_fields:
        value = getattr(shape, name)
        members = enumerate(value) if isinstance(value, list) and name != "tools" else ((None, value),)
        for index, member in members:
            if isinstance(member, WireRequest):
                yield from _unknown_fields(member, f"{where}{name}." if index is None else f"{where}{name}[{index}].")


def _checked_pair(pair: PromptCompletion) -> PromptCompletion:
    if not pair.completion:
        raise _Fault("completion must not be empty")
    return pair


def _checked_chat(chat: TrainingChat) -> TrainingChat:
    for index, message in enumerate(chat.messages):
        if message.weight is not None and message.role != "assistant":
            raise _Fault(f"messages[{index}].weight: only messages of the assistant have one")
        if message.function_call is not None:
            raise _Fault(f"messages[{index}].function_call is deprecated and not supported; use tool_calls")
    if not any(chat.is_trained(index) for index in range(len(chat.messages))):
        raise _Fault("messages: there must be an assistant message whose weight is not 0")
    return chat
