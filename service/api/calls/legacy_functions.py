"""Chats in the form that OpenAI had before tools: `functions`, `function_call`, results with the role `function`.

They are converted to chats with tools, of which one may be called at a time, so that there is one way to the model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from service.errors import InvalidRequest
from service.protocol.chat import ChatMessage, ChatPromptFields, Tool, ToolCall

Fields = TypeVar("Fields", bound=ChatPromptFields)

_CALL_PATH = re.compile(r"messages\[(\d+)\]\.tool_calls(?:\[0\](?:\.function)?)?")
_TOOL_PATH = re.compile(r"tools(?:(\[\d+\])\.function)?")


def with_tools(fields: Fields) -> Fields:
    """The same chat with tools instead of functions; InvalidRequest if it has both. Earlier calls may have either
    form."""
    _check_one_form(fields)
    update: dict[str, Any] = {"functions": None, "function_call": None}
    if fields.functions:
        update |= {
            "tools": [Tool(type="function", function=function) for function in fields.functions],
            "tool_choice": _tool_choice(fields.function_call),
            "parallel_tool_calls": False,
        }
    return fields.model_copy(update={**update, "messages": _messages(fields.messages)})


def legacy_names(fields: ChatPromptFields) -> Callable[[str], str]:
    """For `fields_named`: maps the path of a field of `with_tools(fields)` to the path that the client wrote."""

    def name_of(path: str) -> str:
        if (match := _CALL_PATH.match(path)) and fields.messages[int(match[1])].function_call is not None:
            return f"messages[{match[1]}].function_call{path[match.end() :]}"
        if not fields.functions:
            return path
        if path == "tool_choice":
            return "function_call"
        match = _TOOL_PATH.match(path)
        return path if match is None else f"functions{match[1] or ''}{path[match.end() :]}"

    return name_of


def _check_one_form(fields: ChatPromptFields) -> None:
    if fields.functions and (fields.tools or fields.tool_choice is not None):
        raise InvalidRequest("functions cannot be combined with tools or tool_choice.", param="functions")
    if fields.tools and fields.function_call is not None:
        raise InvalidRequest("function_call cannot be combined with tools; use tool_choice.", param="function_call")
    if not fields.functions and fields.function_call not in (None, "none", "auto"):
        raise InvalidRequest("function_call is only allowed when functions are given.", param="function_call")


def _tool_choice(function_call: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
    match function_call:
        case None | "none" | "auto":
            return function_call
        case {"name": str(name)}:
            return {"type": "function", "function": {"name": name}}
    raise InvalidRequest("function_call must be none, auto or the name of a function.", param="function_call")


def _messages(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """A call gets an id from its index, the same whenever the chat is sent; a result gets the id of the last call."""
    read, last_id = [], None
    for index, message in enumerate(messages):
        if message.function_call is not None:
            if message.tool_calls:
                param = f"messages[{index}].function_call"
                raise InvalidRequest(f"{param} cannot be combined with tool_calls.", param=param)
            last_id = f"call{index:05}"  # nine letters and digits, as Mistral's templates ask
            call = ToolCall(id=last_id, function=message.function_call)
            message = message.model_copy(update={"function_call": None, "tool_calls": [call]})
        elif message.role == "function" and message.tool_call_id is None:
            message = message.model_copy(update={"tool_call_id": last_id})
        read.append(message)
    return read
