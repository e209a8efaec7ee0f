"""Wire messages, checked -> the messages that a chat template is given."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import CalledFunction, ChatMessage, ContentPart, ToolCall
from service.text.call_arguments import arguments_object
from service.text.chat_template import ChatTemplate

UNSUPPORTED_FIELDS = frozenset({"audio", "refusal"})
"""Known fields of a message that are refused unless empty."""
_OPENAI_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_MAX_ROLE_CHARACTERS = 64
_CHARACTERS_AROUND_A_MESSAGE = 16
"""Roughly what a template writes around each message."""


def check_messages(messages: Sequence[ChatMessage], template: ChatTemplate) -> None:
    """Refuses messages that are empty or use what is not supported. A role must be OpenAI's, or one of the
    template's."""
    if not messages:
        raise InvalidRequest("messages must not be empty.", param="messages")
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        for name, value in (message.model_extra or {}).items():
            if value and name in UNSUPPORTED_FIELDS:
                raise UnsupportedParameter(f"{where}.{name} is not supported yet.", param=f"{where}.{name}")
        _check_role(message.role, where, template)
        _check_tool_fields(message, where)
        _check_content(message, where)


def template_messages(
    messages: Sequence[ChatMessage], template: ChatTemplate, max_arguments_characters: int
) -> list[dict[str, object]]:
    """The messages as templates expect them: text parts are joined, one per line; the arguments of tool calls are
    objects, not text. InvalidRequest if the arguments are longer than `max_arguments_characters`. Any thread.

    Arguments that max_tokens cut off, or that are not JSON, are converted by `arguments_object`: they come again with
    every later turn, so a refusal would end the conversation.

    The role `developer` is the new name of `system`; templates that do not know it get the old name. `function` is the
    old name of `tool`; templates that do not know it get the new one.
    """
    most = max_arguments_characters
    return [_template_message(message, template, index, most) for index, message in enumerate(messages)]


def num_characters(messages: Sequence[ChatMessage]) -> int:
    """Roughly how many characters there are to render, in all fields."""
    texts = [text for m in messages for text in (m.name, m.tool_call_id, _reasoning_of(m), text_of(m.content))]
    calls = [call for message in messages for call in message.tool_calls or ()]
    texts += [text for call in calls for text in (call.id, call.function.name, _arguments_text(call.function))]
    return sum(len(text) for text in texts if text) + _CHARACTERS_AROUND_A_MESSAGE * len(messages)


def num_content_characters(messages: Sequence[ChatMessage]) -> int:
    """Characters of content: a template may leave out everything else, but not this."""
    return sum(len(text_of(message.content)) for message in messages)


def _template_message(message: ChatMessage, template: ChatTemplate, index: int, most: int) -> dict[str, object]:
    role: str = message.role
    if role == "developer" and not template.knows_role(role):
        role = "system"
    if role == "function" and not template.knows_role(role):
        role = "tool"
    values: dict[str, object] = {"role": role, "content": text_of(message.content)}
    for name in ("name", "tool_call_id"):
        if (value := getattr(message, name)) is not None:
            values[name] = value
    if (reasoning := _reasoning_of(message)) is not None:
        values |= {"reasoning": reasoning, "reasoning_content": reasoning}  # templates use either name
    if message.tool_calls:
        values["tool_calls"] = [
            _template_call(call, f"messages[{index}].tool_calls[{number}]", most)
            for number, call in enumerate(message.tool_calls)
        ]
    return values


def _template_call(call: ToolCall, where: str, max_characters: int) -> dict[str, object]:
    param = f"{where}.function.arguments"
    if len(_arguments_text(call.function)) > max_characters:
        raise InvalidRequest(f"{param} may have at most {max_characters} characters.", param=param)
    arguments = call.function.arguments
    if isinstance(arguments, str):
        arguments = arguments_object(arguments, keeps_cut_text=True)
    named = {} if call.id is None else {"id": call.id}
    return {**named, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def _check_depth(function: CalledFunction, param: str) -> None:
    try:
        _arguments_text(function)
    except orjson.JSONEncodeError as error:
        raise InvalidRequest(f"{param} is nested too deeply.", param=param) from error


def _arguments_text(function: CalledFunction) -> str:
    """The arguments as text; if they are not text, some text of the same length."""
    if isinstance(function.arguments, str):
        return function.arguments
    return orjson.dumps(function.arguments).decode()


def _reasoning_of(message: ChatMessage) -> str | None:
    return message.reasoning_content if message.reasoning is None else message.reasoning


def text_of(content: str | list[ContentPart] | None) -> str:
    """Text parts as templates get them: joined, one per line."""
    if isinstance(content, str):
        return content
    return "\n".join(part.text or "" for part in content or ())


def _check_role(role: str, where: str, template: ChatTemplate) -> None:
    """Templates treat a role as plain text, but one that a template does not know would mean nothing to the model."""
    if role not in _OPENAI_ROLES and not (len(role) <= _MAX_ROLE_CHARACTERS and template.knows_role(role)):
        known = ", ".join(sorted(_OPENAI_ROLES | template.roles))
        raise InvalidRequest(
            f"{where}.role {role[:_MAX_ROLE_CHARACTERS]!r} is not one of: {known}.", param=f"{where}.role"
        )


def _check_tool_fields(message: ChatMessage, where: str) -> None:
    if message.tool_calls and message.role != "assistant":
        raise InvalidRequest(f"{where}.tool_calls: only the assistant calls tools.", param=f"{where}.tool_calls")
    for index, call in enumerate(message.tool_calls or ()):
        _check_depth(call.function, f"{where}.tool_calls[{index}].function.arguments")
    if message.role == "tool" and not message.tool_call_id:
        raise InvalidRequest(f"{where}.tool_call_id is required.", param=f"{where}.tool_call_id")
    if message.role == "function" and not message.name:
        raise InvalidRequest(f"{where}.name is required.", param=f"{where}.name")


def _check_content(message: ChatMessage, where: str) -> None:
    content = message.content
    if content is None:
        if message.tool_calls or (message.role == "assistant" and _reasoning_of(message)):
            return  # an answer that was cut off during its reasoning has no content, as in vLLM
        raise InvalidRequest(f"{where}.content is required.", param=f"{where}.content")
    if isinstance(content, str):
        return
    if not content:
        raise InvalidRequest(f"{where}.content must not be empty.", param=f"{where}.content")
    for index, part in enumerate(content):
        param = f"{where}.content[{index}]"
        if part.type != "text":
            raise UnsupportedParameter(
                f"{param}.type: only parts of type 'text' are supported, not {part.type!r}.", param=f"{param}.type"
            )
        if part.text is None:
            raise InvalidRequest(f"{param}.text is required.", param=f"{param}.text")
