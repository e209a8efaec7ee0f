"""The items of a response's conversation -> the messages of a chat.

Reasoning, the text after it and the calls that follow are one message of the assistant. The instructions and the system
messages right after them are one system message, since most templates allow only one, at the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from service.api.calls.compaction_item import summary_of
from service.api.calls.response_tools import custom_arguments, joined_name
from service.api.calls.unsupported import extra_fields
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.responses import InputItem, InputPart

Value = TypeVar("Value")

_TEXTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})
_ABOVE = frozenset({"system", "developer"})


@dataclass(slots=True)
class _Draft:
    """A message to which items are added. place: of the item that it began with."""

    place: str
    role: str
    content: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    call_places: list[str] = field(default_factory=list)
    tool_call_id: str | None = None

    def message(self) -> dict[str, Any]:
        parts = [{"type": "text", "text": text} for text in self.content]
        message: dict[str, Any] = {"role": self.role, "content": parts or ""}
        if self.reasoning:
            message["reasoning_content"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class ChatMessages:
    """Built from items, one by one. unread: names of ignored fields in them."""

    def __init__(self, instructions: str | None) -> None:
        self.unread: dict[str, None] = {}
        self._drafts: list[_Draft] = []
        self._above = False  # the last message is the instructions, and may be extended
        self._spoken = False  # the last message is the assistant's, and may be extended
        if instructions is not None:
            self._begin("instructions", "system", above=True).content.append(instructions)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """As JSON of a chat."""
        return [draft.message() for draft in self._drafts]

    def add(self, item: InputItem, place: str) -> None:
        """Refuses an item that is incomplete or of an unknown type."""
        self.unread |= dict.fromkeys(extra_fields("input", item))
        kind = item.type or ("message" if item.role else "item_reference")
        if kind not in _READERS:
            raise UnsupportedParameter(
                f"{place}.type: items of type '{kind[:64]}' are not supported.", param=f"{place}.type"
            )
        _READERS[kind](self, item, place)

    def place_of(self, index: int, call: int | None = None) -> str:
        """The path of the item that a message, or a call in it, was made from."""
        draft = self._drafts[index]
        return draft.place if call is None else draft.call_places[call]

    def read_message(self, item: InputItem, place: str) -> None:
        role = _required(item.role, f"{place}.role")
        texts = _required_texts(item.content, f"{place}.content")
        if role == "assistant":
            self._speaking(place).content += texts
        elif role in _ABOVE and self._above:
            self._drafts[-1].content += ["", *texts]
        else:
            self._begin(place, role).content += texts

    def read_reasoning(self, item: InputItem, place: str) -> None:
        if item.encrypted_content is not None and not item.content:
            self.unread["input.encrypted_content"] = None
        texts = _texts(item.content, f"{place}.content") or _texts(item.summary, f"{place}.summary")
        if any(texts):
            self._speaking(place).reasoning += texts

    def read_call(self, item: InputItem, place: str) -> None:
        name = joined_name(_required(item.name, f"{place}.name"), item.namespace)
        if item.type == "custom_tool_call":
            arguments = orjson.dumps(custom_arguments(_required(item.input, f"{place}.input"))).decode()
        else:
            arguments = _required(item.arguments, f"{place}.arguments")
        call_id = _required(item.call_id, f"{place}.call_id")
        draft = self._speaking(place, calls=True)
        draft.calls.append({"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}})
        draft.call_places.append(place)

    def read_output(self, item: InputItem, place: str) -> None:
        call_id = _required(item.call_id, f"{place}.call_id")
        texts = _required_texts(item.output, f"{place}.output")
        draft = self._begin(place, "tool")
        draft.tool_call_id = call_id
        draft.content += texts

    def read_compaction(self, item: InputItem, place: str) -> None:
        """A summary that replaces the conversation becomes the assistant's message, so that the user's next message
        follows it."""
        content = _required(item.encrypted_content, f"{place}.encrypted_content")
        summary = summary_of(content, f"{place}.encrypted_content")
        self._begin(place, "assistant").content.append(f"Summary of our conversation so far:\n{summary}")

    def _speaking(self, place: str, *, calls: bool = False) -> _Draft:
        """The assistant's message that is being built; a new one if that already has text. A message with calls is
        always continued, since the results of its calls must follow it directly."""
        if self._spoken and (calls or self._drafts[-1].calls or not self._drafts[-1].content):
            return self._drafts[-1]
        draft = self._begin(place, "assistant")
        self._spoken = True
        return draft

    def _begin(self, place: str, role: str, *, above: bool = False) -> _Draft:
        self._drafts.append(_Draft(place, role))
        self._above, self._spoken = above, False
        return self._drafts[-1]


_READERS: Mapping[str, Callable[[ChatMessages, InputItem, str], None]] = {
    "message": ChatMessages.read_message,
    "reasoning": ChatMessages.read_reasoning,
    "function_call": ChatMessages.read_call,
    "custom_tool_call": ChatMessages.read_call,
    "function_call_output": ChatMessages.read_output,
    "custom_tool_call_output": ChatMessages.read_output,
    "compaction": ChatMessages.read_compaction,
}


def _required_texts(content: str | Sequence[InputPart] | None, param: str) -> list[str]:
    if content is None:
        raise _missing(param)
    return _texts(content, param)


def _texts(content: str | Sequence[InputPart] | None, param: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [_text(part, f"{param}[{index}]") for index, part in enumerate(content or ())]


def _text(part: InputPart, param: str) -> str:
    if part.type == "refusal":
        return _required(part.refusal, f"{param}.refusal")
    if part.type not in _TEXTS:
        raise UnsupportedParameter(
            f"{param}.type: parts of type '{part.type[:64]}' are not supported, only text.", param=f"{param}.type"
        )
    return _required(part.text, f"{param}.text")


def _required(value: Value | None, param: str) -> Value:
    if value is None:
        raise _missing(param)
    return value


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param} is required.", param=param, code="missing_required_parameter")
