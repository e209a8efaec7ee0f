"""The messages of Anthropic's API -> those of a chat.

There, the user's text and the results of tools are blocks of one message; here they are messages of their own. The
assistant's thinking, text and calls are one message in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import orjson

from service.api.calls.token_checks import quote
from service.config import ApiConfig
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import CalledFunction, ChatMessage, ToolCall
from service.protocol.messages import ContentBlock, InputMessage, MessagesPromptFields, TextPart

_BILLING_HEADER = "x-anthropic-billing-header:"
"""Begins a block that Claude Code puts before its system prompt, different in every request. It is not meant for the
model, and would keep the prefix cache from matching what follows."""
_ERROR = "Error: "
"""Before a tool's result that is marked as an error: templates have no other way to say so."""
_NEEDED = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
_MAY_BE_EMPTY = ("text", "thinking", "input")
_BLOCKS_OF = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}


@dataclass(slots=True)
class _Turn:
    """A chat message in the making. tool_use_id: of the call whose result it is."""

    role: Literal["system", "user", "assistant", "tool"]
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    tool_use_id: str | None = None

    def message(self) -> ChatMessage:
        return ChatMessage(
            role=self.role,
            content="\n".join(self.texts),
            reasoning_content="\n".join(self.thoughts) or None,
            tool_calls=self.calls or None,
            tool_call_id=self.tool_use_id,
        )


def chat_messages(fields: MessagesPromptFields, config: ApiConfig) -> list[ChatMessage]:
    """Refuses, by name, blocks that are incomplete or of the wrong kind. Text blocks are joined by line breaks;
    adjacent messages of one role are merged.

    A system message after the first place is added to a user turn, since most templates allow only one, at the
    beginning: to the end of the user turn before it, else of the one after it. So it does not change the prompt before
    it, which the prefix cache may have.
    """
    system = _Turn("system", _system_texts(fields.system, "system"))
    turns: list[_Turn] = []
    held: list[str] = []  # of system messages after an assistant turn
    for index, message in enumerate(fields.messages):
        where = f"messages[{index}]"
        _check_blocks(message, where)
        if message.role == "system":
            texts = _system_texts(message.content, f"{where}.content")
            beside = held if turns and turns[-1].role == "assistant" else (turns[-1] if turns else system).texts
            beside += texts
        elif message.role == "user":
            _add_user(turns, message, where)
            turns[-1].texts += held
            held = []
        else:
            _add_held(turns, held)
            held = []
            _add_assistant(turns, message, where, config)
    _add_held(turns, held)
    return [turn.message() for turn in ([system, *turns] if system.texts else turns)]


def check_continued(messages: Sequence[InputMessage]) -> bool:
    """Whether the answer continues the last message, which is the assistant's. InvalidRequest if it cannot be
    continued."""
    if not messages or messages[-1].role != "assistant":
        return False
    blocks = messages[-1].content
    if not isinstance(blocks, str) and any(block.type == "tool_use" for block in blocks):
        where = f"messages[{len(messages) - 1}].content"
        raise InvalidRequest(
            f"{where}: the last message calls tools; a user message with their tool_result blocks must follow.",
            param=where,
        )
    return True


def _open(turns: list[_Turn], role: Literal["user", "assistant"]) -> _Turn:
    """The last turn, if it has this role, else a new one."""
    if not turns or turns[-1].role != role:
        turns.append(_Turn(role))
    return turns[-1]


def _add_held(turns: list[_Turn], held: list[str]) -> None:
    if held:
        _open(turns, "user").texts += held


def _add_user(turns: list[_Turn], message: InputMessage, where: str) -> None:
    for index, block in enumerate(_blocks(message.content)):
        if block.type == "tool_result":
            texts = _result_texts(block, f"{where}.content[{index}]")
            turns.append(_Turn("tool", texts, tool_use_id=block.tool_use_id))
        else:
            _open(turns, "user").texts.append(block.text or "")


def _add_assistant(turns: list[_Turn], message: InputMessage, where: str, config: ApiConfig) -> None:
    turn = _open(turns, "assistant")
    for index, block in enumerate(_blocks(message.content)):
        if block.type == "tool_use":
            turn.calls.append(_call(block, f"{where}.content[{index}].input", config))
        elif block.type == "thinking":
            turn.thoughts += [block.thinking] if block.thinking else []
        elif block.type == "text":
            turn.texts.append(block.text or "")


def _call(block: ContentBlock, where: str, config: ApiConfig) -> ToolCall:
    arguments = orjson.dumps(block.input).decode()
    if len(arguments) > config.max_arguments_characters:
        raise InvalidRequest(f"{where} may have at most {config.max_arguments_characters} characters.", param=where)
    return ToolCall(id=block.id, function=CalledFunction(name=block.name or "", arguments=arguments))


def _result_texts(block: ContentBlock, where: str) -> list[str]:
    texts = _texts_of_parts(block.content, f"{where}.content")
    return [_ERROR + "\n".join(texts)] if block.is_error else texts


def _system_texts(content: str | Sequence[TextPart | ContentBlock] | None, where: str) -> list[str]:
    return [text for text in _texts_of_parts(content, where) if not text.startswith(_BILLING_HEADER)]


def _texts_of_parts(content: str | Sequence[TextPart | ContentBlock] | None, where: str) -> list[str]:
    if isinstance(content, str):
        return [content]
    for index, part in enumerate(content or ()):
        if part.type != "text":
            param = f"{where}[{index}].type"
            raise UnsupportedParameter(f"{param}: only blocks of type 'text' are supported here.", param=param)
        if part.text is None:
            raise _missing(f"{where}[{index}].text")
    return [part.text or "" for part in content or ()]


def _blocks(content: str | Sequence[ContentBlock]) -> Sequence[ContentBlock]:
    return (ContentBlock(type="text", text=content),) if isinstance(content, str) else content


def _check_blocks(message: InputMessage, where: str) -> None:
    if isinstance(message.content, str):
        return
    if not message.content:
        raise InvalidRequest(f"{where}.content must not be empty.", param=f"{where}.content")
    known = _BLOCKS_OF[message.role]
    for index, block in enumerate(message.content):
        param = f"{where}.content[{index}]"
        if block.type not in known:
            raise UnsupportedParameter(
                f"{param}.type: {quote(block.type)} is not supported; the blocks of a message with role "
                f"{message.role} may be {', '.join(known)}.",
                param=f"{param}.type",
            )
        for name in _NEEDED[block.type]:
            value = getattr(block, name)
            if value is None or (value == "" and name not in _MAY_BE_EMPTY):
                raise _missing(f"{param}.{name}")


def _missing(param: str) -> InvalidRequest:
    return InvalidRequest(f"{param} is required.", param=param, code="missing_required_parameter")
