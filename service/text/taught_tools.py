"""Tools for a chat template without tools: their definitions, calls and results are written into the text of the
messages.

In Hermes' style, which most models have seen: a system message shows the functions and how a call is written, calls are
part of the assistant's text, and results come in user messages.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

Message = Mapping[str, object]

_INTRODUCTION = (
    "You may call functions. Each is described by a line of JSON between <tools> and </tools>:\n<tools>\n{}\n</tools>\n"
    'To call one, answer with nothing but\n<tool_call>\n{{"name": NAME, "arguments": OBJECT}}\n</tool_call>'
)


def with_tools_as_text(messages: Sequence[Message], tools: Sequence[object]) -> list[Message]:
    """The messages without fields and roles that only templates with tools know. tools: those that may be called."""
    plain: list[Message] = [_plain(message) for message in messages]
    shown = _INTRODUCTION.format("\n".join(_json(_function_of(tool)) for tool in tools))
    if plain and plain[0]["role"] == "system":
        first = {**plain[0], "content": f"{plain[0]['content']}\n\n{shown}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": shown}, *plain]


def _plain(message: Message) -> dict[str, object]:
    kept = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id")}
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if isinstance(calls, Sequence):
        written = [f"<tool_call>\n{_json(_function_of(call))}\n</tool_call>" for call in calls]
        kept["content"] = "\n".join([*([str(message["content"])] if message["content"] else []), *written])
    return kept


def _function_of(tool: object) -> object:
    return tool["function"] if isinstance(tool, Mapping) and "function" in tool else tool


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
