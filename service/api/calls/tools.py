"""The `tools` of a chat call: checked, and converted for the template, the output's parser and its grammar."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from service.api.calls.schema_limits import schema_text, without_annotations
from service.config import ApiConfig
from service.core.grammar import GrammarSpec
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import ChatPromptFields, Tool
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import Tokenizer
from service.text.tool_calls import MISTRAL_MARKER, ToolStyle
from service.text.tool_grammar import CallableTool, CallRules, call_grammar

_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,128}")

Mode = Literal["none", "auto", "required"]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """definitions: as the template shows them; None without tools.

    callable: the functions that may be called. style: how calls are written; None if the output is not searched for
    calls. must_call: the answer has only calls. parallel: there may be several.
    """

    definitions: list[dict[str, object]] | None = None
    callable: tuple[CallableTool, ...] = ()
    style: ToolStyle | None = None
    must_call: bool = False
    parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.callable)

    @property
    def needs_grammar(self) -> bool:
        """Whether the model's free output could be something that the client has ruled out."""
        return bool(self.callable) and (
            self.must_call or not self.parallel or any(tool.is_strict for tool in self.callable)
        )


def check_tools(fields: ChatPromptFields, template: ChatTemplate, config: ApiConfig) -> ToolUse:
    """Refuses, by name, what is not supported. With tool_choice `none` the model does not see the tools."""
    tools = fields.tools or []
    mode, allowed = _check_choice(fields.tool_choice)
    if not tools:
        if mode == "required":
            raise InvalidRequest("tool_choice is only allowed when tools are given.", param="tool_choice")
        return ToolUse()
    for index, tool in enumerate(tools):
        _check_tool(tool, f"tools[{index}]", config)
    names = {tool.function.name for tool in tools}
    if len(names) < len(tools):
        raise InvalidRequest("tools: two tools have the same name.", param="tools")
    if allowed is not None and not allowed <= names:
        raise InvalidRequest("tool_choice names a function that is not in tools.", param="tool_choice")
    if mode == "none":
        return ToolUse()
    by_template = config.tool_call_parser == "auto" or not template.knows_tools
    style = template.tool_style if by_template else ToolStyle(config.tool_call_parser)
    must_call = mode == "required"
    if style is None and must_call:
        style = ToolStyle.HERMES  # the grammar leaves the model no choice, whatever it was trained on
    if style is None:
        raise UnsupportedParameter(
            "tools is not supported: this model's chat template writes tool calls in a format that is not known here.",
            param="tools",
        )
    return ToolUse(
        [_definition(tool) for tool in tools],
        tuple(_callable(tool) for tool in tools if allowed is None or tool.function.name in allowed),
        style,
        must_call,
        fields.parallel_tool_calls is not False,
    )


def output_form(use: ToolUse, form: GrammarSpec | None, tokenizer: Tokenizer) -> GrammarSpec | None:
    """The grammar of the whole answer: calls, the form that the client wants, or either of them.

    Required calls leave no room for content. Only JSON can be combined with optional calls; any other form holds for
    the whole answer.
    """
    if use.style is None:
        return form
    stands_beside = form is not None and form.kind == "json_schema" and form.source.startswith("{")
    if not (use.must_call or stands_beside or (form is None and use.needs_grammar)):
        return form
    marker = tokenizer.id_of(MISTRAL_MARKER)
    content = None if use.must_call or form is None else form.source
    rules = CallRules(use.must_call, use.parallel, content, marker if marker in tokenizer.special_ids else None)
    try:
        source = call_grammar(use.style, use.callable, rules)
    except ValueError as error:
        raise InvalidRequest(f"tools: {error}.", param="tools") from error
    return GrammarSpec("lark", source, "tools")


def _check_choice(choice: str | dict[str, Any] | None) -> tuple[Mode, frozenset[str] | None]:
    """Whether calls may or must be made, and which functions may be called (None: all)."""
    match choice:
        case None | "auto":
            return "auto", None
        case "none" | "required":
            return choice, None
        case {"type": "function", "function": {"name": str(name)}}:
            return "required", frozenset({name})
        case {"type": "allowed_tools", "allowed_tools": {"mode": ("auto" | "required") as mode, "tools": list(tools)}}:
            return mode, _allowed_names(tools)
    raise InvalidRequest("tool_choice must be none, auto, required, a function or allowed_tools.", param="tool_choice")


def _allowed_names(tools: Sequence[object]) -> frozenset[str]:
    names = []
    for tool in tools:
        match tool:
            case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
                names.append(name)
            case _:
                raise InvalidRequest("tool_choice.allowed_tools.tools must name functions.", param="tool_choice")
    if not names:
        raise InvalidRequest("tool_choice.allowed_tools.tools must not be empty.", param="tool_choice")
    return frozenset(names)


def _check_tool(tool: Tool, where: str, config: ApiConfig) -> None:
    function = tool.function
    if not _NAME.fullmatch(function.name):
        raise InvalidRequest(
            f"{where}.function.name must be 1 to 128 letters, digits, dots, dashes or underscores.",
            param=f"{where}.function.name",
        )
    schema_text(function.parameters, f"{where}.function.parameters", config)
    if function.parameters and function.parameters.get("type", "object") != "object":
        raise InvalidRequest(
            f"{where}.function.parameters must be the schema of an object.", param=f"{where}.function.parameters"
        )


def _callable(tool: Tool) -> CallableTool:
    parameters = without_annotations(tool.function.parameters)
    return CallableTool(tool.function.name, parameters, bool(tool.function.strict))


def _definition(tool: Tool) -> dict[str, object]:
    return tool.model_dump(exclude_unset=True)
