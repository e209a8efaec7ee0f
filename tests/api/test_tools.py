from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.api.tools import ToolUse, check_tools
from service.config import ApiConfig
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import ChatPromptFields
from service.text.chat_template import ChatTemplate
from service.text.tool_calls import ToolStyle
from tests.text import tiny_tokenizers

CONFIG = ApiConfig(served_model_names=("m",), max_tools=3, max_schema_bytes=100)
ABLE = ChatTemplate(tiny_tokenizers.TOOL_TEMPLATE, {})
UNABLE = ChatTemplate(tiny_tokenizers.CHAT_TEMPLATE, {})
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


def fields(**values: Any) -> ChatPromptFields:
    return ChatPromptFields.model_validate({"messages": [], **values})


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def test_tools_reach_the_template_as_they_were_sent() -> None:
    use = check_tools(fields(tools=[NOW, tool(description="d", note="kept")]), ABLE, CONFIG)
    assert use == ToolUse([NOW, tool(description="d", note="kept")], frozenset({"now", "f"}), ToolStyle.HERMES)


@pytest.mark.parametrize("values", [{}, {"tools": []}, {"tools": None}, {"tools": [NOW], "tool_choice": "none"}])
def test_without_tools_nothing_is_searched_for_calls(values: dict[str, Any]) -> None:
    assert check_tools(fields(**values), ABLE, CONFIG) == ToolUse()


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"tools": [tool(name="a b")]}, "tools[0].function.name"),
        ({"tools": [NOW, tool(name="x" * 65)]}, "tools[1].function.name"),
        ({"tools": [tool(), tool()]}, "tools"),
        ({"tools": [tool(name=f"f{index}") for index in range(4)]}, "tools"),
        ({"tools": [tool(parameters={"x": "y" * 100})]}, "tools[0].function.parameters"),
        ({"tools": [NOW], "tool_choice": "sometimes"}, "tool_choice"),
    ],
)
def test_what_can_never_work_is_refused(values: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_tools(fields(**values), ABLE, CONFIG)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"tools": [NOW], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "now"}}}, "tool_choice"),
        ({"tools": [NOW], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [tool(strict=True)]}, "tools[0].function.strict"),
    ],
)
def test_what_does_not_work_yet_is_refused_by_name(values: dict[str, Any], param: str) -> None:
    with pytest.raises(UnsupportedParameter) as refusal:
        check_tools(fields(**values), ABLE, CONFIG)
    assert refusal.value.param == param


def test_a_template_without_tools_refuses_them() -> None:
    with pytest.raises(UnsupportedParameter, match="template"):
        check_tools(fields(tools=[NOW]), UNABLE, CONFIG)
    assert check_tools(fields(tools=[NOW], tool_choice="none"), UNABLE, CONFIG) == ToolUse()


def test_the_style_can_be_set() -> None:
    config = replace(CONFIG, tool_call_parser="pythonic")
    assert check_tools(fields(tools=[NOW]), ABLE, config).style is ToolStyle.PYTHONIC
