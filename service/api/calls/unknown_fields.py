"""Unknown fields inside messages and tools."""

from __future__ import annotations

from service.api.calls.unsupported import extra_fields
from service.protocol.chat import ChatPromptFields
from service.protocol.generation import WireRequest
from service.text.chat_messages import UNSUPPORTED_FIELDS


def unknown_fields(fields: ChatPromptFields) -> tuple[str, ...]:
    """Their names, each once."""
    shapes: list[tuple[str, WireRequest]] = []
    for message in fields.messages:
        shapes.append(("messages", message))
        if isinstance(message.content, list):
            shapes += [("messages.content", part) for part in message.content if part.type == "text"]
        if message.function_call is not None:
            shapes.append(("messages.function_call", message.function_call))
        for call in message.tool_calls or ():
            shapes += [("messages.tool_calls", call), ("messages.tool_calls.function", call.function)]
    for tool in fields.tools or ():
        shapes += [("tools", tool), ("tools.function", tool.function)]
    shapes += [("functions", function) for function in fields.functions or ()]
    names = {name: None for where, shape in shapes for name in extra_fields(where, shape)}
    return tuple(name for name in names if name.removeprefix("messages.") not in UNSUPPORTED_FIELDS)
