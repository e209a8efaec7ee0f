"""How many members a body's lists and objects may have, counted before any of them is checked.

Checking one message takes some 10 us of the event loop, and listing the errors of four million of them 17 s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.config import ApiConfig
from service.errors import InvalidRequest


def check_members(body: Mapping[str, Any], config: ApiConfig) -> None:
    """Refuses lists and objects with more members than are supported. Values of other types are left to the wire
    shapes."""
    _check("logit_bias", body.get("logit_bias"), dict, config.max_logit_bias, "tokens")
    _check("stop_token_ids", body.get("stop_token_ids"), list, config.max_stop_token_ids, "ids")
    _check("allowed_token_ids", body.get("allowed_token_ids"), list, config.max_allowed_token_ids, "ids")
    _check("logprob_token_ids", body.get("logprob_token_ids"), list, config.max_logprob_token_ids, "ids")
    _check_prompts(body.get("prompt"), config.max_prompts_per_call)
    _check("tools", body.get("tools"), list, config.max_tools, "tools")
    _check("functions", body.get("functions"), list, config.max_tools, "functions")
    _check("documents", body.get("documents"), list, config.max_documents, "documents")
    _check("messages", body.get("messages"), list, config.max_messages, "messages")
    messages = _of_conversations(body.get("messages"))
    _check("messages", messages, list, config.max_messages, "messages")
    _check_parts("messages", messages, ("content", "tool_calls"), config.max_messages)
    _check("system", body.get("system"), list, config.max_messages, "blocks")
    _check("input", body.get("input"), list, config.max_messages, "items")
    _check_parts("input", body.get("input"), ("content", "output", "summary"), config.max_messages)
    _check_namespaces(body.get("tools"), config.max_tools)


def _check(param: str, value: object, kind: type[dict[str, Any]] | type[list[Any]], most: int, members: str) -> None:
    if isinstance(value, kind) and len(value) > most:
        raise InvalidRequest(f"{param} may hold at most {most} {members}.", param=param)


def _check_prompts(prompt: object, most: int) -> None:
    """A list of integers is one prompt."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        _check("prompt", prompt, list, most, "prompts")


def _of_conversations(messages: object) -> object:
    """The messages of all conversations of a batch in one list; anything else as it is."""
    if not isinstance(messages, list) or not any(isinstance(each, list) for each in messages):
        return messages
    return [message for each in messages if isinstance(each, list) for message in each]


def _check_parts(param: str, holders: object, names: Sequence[str], most: int) -> None:
    """Counts the parts of all messages or items together, with those of tool results."""
    if not isinstance(holders, list):
        return
    lists = [each for name in names for each in _lists(holders, name)]
    num_parts = sum(map(len, lists))
    if num_parts <= most:
        num_parts += sum(len(each) for parts in lists for each in _lists(parts, "content"))
    if num_parts > most:
        kinds = " and ".join("content parts" if name == "content" else name.replace("_", " ") for name in names)
        raise InvalidRequest(f"{param} may hold at most {most} {kinds} in all.", param=param)


def _check_namespaces(tools: object, most: int) -> None:
    """A namespace of tools counts as the tools in it."""
    if not isinstance(tools, list):
        return
    lists = [tool.get("tools") for tool in tools if isinstance(tool, dict)]
    if sum(len(each) for each in lists if isinstance(each, list)) > most:
        raise InvalidRequest(f"tools may hold at most {most} tools.", param="tools")


def _lists(holders: Sequence[object], name: str) -> list[list[object]]:
    """The lists that these objects have under `name`."""
    values = [each.get(name) for each in holders if isinstance(each, dict)]
    return [value for value in values if isinstance(value, list)]
