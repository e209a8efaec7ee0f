"""Wire messages -> the messages that a chat template is given."""

from __future__ import annotations

from collections.abc import Sequence

from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import ChatMessage, ContentPart
from service.text.chat_template import ChatTemplate

_UNSUPPORTED_FIELDS = frozenset({"tool_calls", "tool_call_id", "function_call", "audio", "refusal"})


def unknown_fields(messages: Sequence[ChatMessage]) -> tuple[str, ...]:
    """Names of the fields inside messages that nobody knows, each once."""
    names = {name: None for message in messages for name in message.model_extra or {}}
    return tuple(f"messages.{name}" for name in names if name not in _UNSUPPORTED_FIELDS)


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Refuse messages that are empty or ask for what is not supported."""
    if not messages:
        raise InvalidRequest("messages must not be empty.", param="messages")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if message.role in ("tool", "function"):
            raise UnsupportedParameter(f"{where}.role {message.role!r} is not supported yet.", param=f"{where}.role")
        for name, value in (message.model_extra or {}).items():
            if value and name in _UNSUPPORTED_FIELDS:
                raise UnsupportedParameter(f"{where}.{name} is not supported yet.", param=f"{where}.{name}")
        _check_content(message, where)


def template_messages(messages: Sequence[ChatMessage], template: ChatTemplate) -> list[dict[str, str]]:
    """Role, content and name of each message; text parts become one text, a line each.

    The role `developer` is today's name of `system`; templates that do not know it get the old name.
    """
    return [_template_message(message, template) for message in messages]


def _template_message(message: ChatMessage, template: ChatTemplate) -> dict[str, str]:
    role: str = message.role
    if role == "developer" and not template.knows_role(role):
        role = "system"
    named = {} if message.name is None else {"name": message.name}
    return {"role": role, "content": _text_of(message.content), **named}


def _text_of(content: str | list[ContentPart] | None) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text or "" for part in content or ())


def _check_content(message: ChatMessage, where: str) -> None:
    content = message.content
    if content is None:
        raise InvalidRequest(f"{where}.content is required.", param=f"{where}.content")
    if isinstance(content, str):
        return
    if not content:
        raise InvalidRequest(f"{where}.content must not be empty.", param=f"{where}.content")
    for index, part in enumerate(content):
        param = f"{where}.content[{index}]"
        if part.type != "text":
            raise UnsupportedParameter(f"{param}.type: only parts of type 'text' are supported.", param=f"{param}.type")
        if part.text is None:
            raise InvalidRequest(f"{param}.text is required.", param=f"{param}.text")
