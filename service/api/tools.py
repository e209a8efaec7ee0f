"""The `tools` of a chat call: checked, and what the template and the output's router are told of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

import orjson

from service.config import ApiConfig
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import ChatPromptFields, Tool
from service.text.chat_template import ChatTemplate
from service.text.tool_calls import ToolStyle

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


@dataclass(frozen=True, slots=True)
class ToolUse:
    """definitions: as the template shows them; None without tools.

    style: how calls are written; None if the model's text is not to be searched for calls.
    """

    definitions: list[dict[str, object]] | None = None
    names: frozenset[str] = frozenset()
    style: ToolStyle | None = None


def check_tools(fields: ChatPromptFields, template: ChatTemplate, config: ApiConfig) -> ToolUse:
    """Refuse, by name, what cannot be honoured. With tool_choice `none` the model is not shown the tools."""
    _check_choice(fields)
    tools = fields.tools or []
    if not tools:
        return ToolUse()
    if len(tools) > config.max_tools:
        raise InvalidRequest(f"tools may hold at most {config.max_tools} tools.", param="tools")
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]", config)
    names = frozenset(tool.function.name for tool in tools)
    if len(names) < len(tools):
        raise InvalidRequest("tools: two tools have the same name.", param="tools")
    if fields.tool_choice == "none":
        return ToolUse()
    if fields.parallel_tool_calls is False:
        raise UnsupportedParameter("parallel_tool_calls: false is not supported yet.", param="parallel_tool_calls")
    style = template.tool_style if config.tool_call_parser == "auto" else ToolStyle(config.tool_call_parser)
    if not template.knows_tools or style is None:
        raise UnsupportedParameter("tools: this model's chat template does not teach it to call tools.", param="tools")
    return ToolUse([_definition(tool) for tool in tools], names, style)


def _check_choice(fields: ChatPromptFields) -> None:
    choice = fields.tool_choice
    if choice in (None, "none", "auto"):
        return
    if choice == "required" or isinstance(choice, dict):
        raise UnsupportedParameter("tool_choice: only none and auto are supported yet.", param="tool_choice")
    raise InvalidRequest("tool_choice must be none, auto, required or a tool.", param="tool_choice")


def _check_tool(tool: Tool, where: str, config: ApiConfig) -> None:
    function = tool.function
    if not _NAME.fullmatch(function.name):
        raise InvalidRequest(
            f"{where}.function.name: 1 to 64 letters, digits, dots, dashes or underscores.",
            param=f"{where}.function.name",
        )
    if function.strict:
        raise UnsupportedParameter(f"{where}.function.strict is not supported yet.", param=f"{where}.function.strict")
    if len(orjson.dumps(function.parameters)) > config.max_schema_bytes:
        raise InvalidRequest(
            f"{where}.function.parameters may have at most {config.max_schema_bytes} bytes.",
            param=f"{where}.function.parameters",
        )


def _definition(tool: Tool) -> dict[str, object]:
    return tool.model_dump(exclude_unset=True)
