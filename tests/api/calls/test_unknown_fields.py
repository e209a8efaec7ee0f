from __future__ import annotations

from typing import Any

from service.api.calls.unknown_fields import unknown_fields
from service.protocol.chat import ChatMessage, ChatPromptFields, Tool
from service.text.chat_messages import check_messages
from service.text.chat_template import ChatTemplate


def message(**fields: Any) -> ChatMessage:
    return ChatMessage.model_validate({"role": "user", "content": "hi", **fields})


def test_names_unknown_fields_once() -> None:
    parts = [{"type": "text", "text": "x", "cache_control": {}}, {"type": "image_url", "image_url": {}}]
    call = {"id": "1", "type": "function", "x": 1, "function": {"name": "f", "arguments": "{}", "y": 1}}
    messages = [
        message(mood="good", audio=None),
        message(mood="bad", tool_calls=None, name="Ann"),
        message(content=parts),
        message(role="assistant", tool_calls=[call]),
    ]
    tool = Tool.model_validate({"type": "function", "a": 1, "function": {"name": "f", "b": 1, "c": None}})
    assert unknown_fields(ChatPromptFields(messages=messages, tools=[tool])) == (
        "messages.mood",
        "messages.content.cache_control",
        "messages.tool_calls.x",
        "messages.tool_calls.function.y",
        "tools.a",
        "tools.function.b",
    )
    check_messages(messages[:2], ChatTemplate("{{ messages }}", {}))
