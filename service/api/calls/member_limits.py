"""How many members a body's lists and objects may have, counted before any of them is checked.

Checking one message takes some 10 us of the event loop, and listing the errors of four million of them 17 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Any

from service.config import ApiConfig
from service.errors import InvalidRequest

_LIMITS: Mapping[str, tuple[type, str, str]] = {
    "logit_bias": (dict, "max_logit_bias", "tokens"),
    "stop_token_ids": (list, "max_stop_token_ids", "ids"),
    "allowed_token_ids": (list, "max_allowed_token_ids", "ids"),
    "logprob_token_ids": (list, "max_logprob_token_ids", "ids"),
    "tools": (list, "max_tools", "tools"),
    "functions": (list, "max_tools", "functions"),
    "documents": (list, "max_documents", "documents"),
    "messages": (list, "max_messages", "messages"),
    "system": (list, "max_messages", "blocks"),
    "input": (list, "max_messages", "items"),
}
"""Field -> what it must be to be counted, the name of its limit in ApiConfig, and what its members are called."""


def check_members(body: Mapping[str, Any], config: ApiConfig) -> None:
    """Refuses lists and objects with more members than are supported. Values of other types are left to the wire
    shapes."""
    for param, value in body.items():
        if isinstance(value, list | dict) and param in _LIMITS:
            kind, limit, members = _LIMITS[param]
            if isinstance(value, kind):
                _check(param, value, getattr(config, limit), members)
    _check_prompts(body.get("prompt"), config.max_prompts_per_call)
    if "messages" in body:
        messages = _of_conversations(body["messages"])
        if isinstance(messages, list):
            _check("messages", messages, config.max_messages, "messages")
            _check_parts("messages", messages, ("content", "tool_calls"), config.max_messages)
    if isinstance(body.get("input"), list):
        _check_parts("input", body["input"], ("content", "output", "summary"), config.max_messages)
    if isinstance(body.get("tools"), list):
        _check_namespaces(body["tools"], config.max_tools)


def _check(param: str, value: Sized, most: int, members: str) -> None:
    if len(value) > most:
        raise InvalidRequest(f"{param} may hold at most {most} {members}.", param=param)


def _check_prompts(prompt: object, most: int) -> None:
    """A list of integers is one prompt."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        _check("prompt", prompt, most, "prompts")


def _of_conversations(messages: object) -> object:
    """The messages of all conversations of a batch in one list; anything else as it is."""
    if not isinstance(messages, list) or not any(isinstance(each, list) for each in messages):
        return messages
    return [message for each in messages if isinstance(each, list) for message in each]


def _check_parts(param: str, holders: list[Any], names: Sequence[str], most: int) -> None:
    """Counts the parts of all messages or items together, with those of tool results."""
    lists = [each for name in names for each in _lists(holders, name)]
    num_parts = sum(map(len, lists))
    if num_parts <= most:
        num_parts += sum(len(each) for parts in lists for each in _lists(parts, "content"))
    if num_parts > most:
        kinds = " and ".join("content parts" if name == "content" else name.replace("_", " ") for name in names)
        raise InvalidRequest(f"{param} may hold at most {most} {kinds} in all.", param=param)


def _check_namespaces(tools: list[Any], most: int) -> None:
    """A namespace of tools counts as the tools in it."""
    lists = [tool.get("tools") for tool in tools if isinstance(tool, dict)]
    if sum(len(each) for each in lists if isinstance(each, list)) > most:
        raise InvalidRequest(f"tools may hold at most {most} tools.", param="tools")


def _lists(holders: Sequence[object], name: str) -> list[list[object]]:
    """The lists that these objects have under `name`."""
    values = [each.get(name) for each in holders if isinstance(each, dict)]
    return [value for value in values if isinstance(value, list)]
