from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.api.calls.tools import ToolUse, check_tools, output_form
from service.config import ApiConfig
from service.core.grammar import GrammarSpec
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.chat import ChatPromptFields
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import Tokenizer
from service.text.tool_calls import ToolStyle
from tests.text import tiny_tokenizers

CONFIG = ApiConfig(served_model_names=("m",), max_schema_bytes=100)
ABLE = ChatTemplate(tiny_tokenizers.TOOL_TEMPLATE, {})
TOKENIZER = Tokenizer(tiny_tokenizers.byte_level())
UNABLE = ChatTemplate(tiny_tokenizers.CHAT_TEMPLATE, {})
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}


def fields(**values: Any) -> ChatPromptFields:
    return ChatPromptFields.model_validate({"messages": [], **values})


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def test_tools_reach_the_template_as_they_were_sent() -> None:
    use = check_tools(fields(tools=[NOW, tool(description="d", note="kept")]), ABLE, CONFIG)
    assert use.definitions == [NOW, tool(description="d", note="kept")]
    assert (use.names, use.style) == ({"now", "f"}, ToolStyle.HERMES)


@pytest.mark.parametrize("values", [{}, {"tools": []}, {"tools": None}, {"tools": [NOW], "tool_choice": "none"}])
def test_without_tools_nothing_is_searched_for_calls(values: dict[str, Any]) -> None:
    assert check_tools(fields(**values), ABLE, CONFIG) == ToolUse()


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"tools": [tool(name="a b")]}, "tools[0].function.name"),
        ({"tools": [NOW, tool(name="x" * 129)]}, "tools[1].function.name"),
        ({"tools": [tool(), tool()]}, "tools"),
        ({"tools": [tool(parameters={"x": "y" * 100})]}, "tools[0].function.parameters"),
        ({"tools": [NOW], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [tool(parameters={"type": "array"})]}, "tools[0].function.parameters"),
        ({"tools": [tool(parameters={"properties": {"a": {"const": -(2**63)}}})]}, "tools[0].function.parameters"),
    ],
)
def test_what_can_never_work_is_refused(values: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        check_tools(fields(**values), ABLE, CONFIG)
    assert refusal.value.param == param


def choice_of(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [choice_of(name) for name in names]}}


@pytest.mark.parametrize(
    ("choice", "names", "must_call"),
    [
        (None, {"now", "f"}, False),
        ("auto", {"now", "f"}, False),
        ("required", {"now", "f"}, True),
        (choice_of("f"), {"f"}, True),
        (allowed("auto", "now"), {"now"}, False),
        (allowed("required", "now", "f"), {"now", "f"}, True),
    ],
)
def test_what_may_and_what_must_be_called(choice: Any, names: set[str], must_call: bool) -> None:
    use = check_tools(fields(tools=[NOW, tool()], tool_choice=choice), ABLE, CONFIG)
    assert (use.names, use.must_call) == (names, must_call)
    assert use.definitions == [NOW, tool()], "the model is shown all of them"
    assert use.needs_grammar is must_call


@pytest.mark.parametrize(
    ("values", "needs"),
    [
        ({"tools": [tool()]}, False),
        ({"tools": [tool(), NOW], "parallel_tool_calls": True}, False),
        ({"tools": [tool()], "parallel_tool_calls": False}, True),
        ({"tools": [NOW, tool(strict=True)]}, True),
        ({"parallel_tool_calls": False}, False),
    ],
)
def test_what_needs_a_grammar(values: dict[str, Any], needs: bool) -> None:
    assert check_tools(fields(**values), ABLE, CONFIG).needs_grammar is needs


JSON_FORM = GrammarSpec("json_schema", '{"type":"object"}', "response_format")
REGEX_FORM = GrammarSpec("regex", "a", "regex")


@pytest.mark.parametrize(
    ("values", "form", "param"),
    [
        ({}, None, None),
        ({}, JSON_FORM, "response_format"),
        ({"tools": [NOW]}, None, None),
        ({"tools": [NOW], "tool_choice": "required"}, None, "tools"),
        ({"tools": [NOW], "tool_choice": "required"}, REGEX_FORM, "tools"),
        ({"tools": [NOW]}, JSON_FORM, "tools"),
        ({"tools": [NOW], "parallel_tool_calls": False}, REGEX_FORM, "regex"),
    ],
)
def test_the_form_of_the_whole_answer(values: dict[str, Any], form: GrammarSpec | None, param: str | None) -> None:
    spec = output_form(check_tools(fields(**values), ABLE, CONFIG), form, TOKENIZER)
    assert (None if spec is None else spec.param) == param


@pytest.mark.parametrize("parser", ["auto", "pythonic"])
def test_a_template_without_tools_is_helped_in_a_style_of_its_own(parser: Any) -> None:
    config = replace(CONFIG, tool_call_parser=parser)
    for choice in ("auto", "required"):
        assert check_tools(fields(tools=[NOW], tool_choice=choice), UNABLE, config).style is ToolStyle.HERMES
    assert check_tools(fields(tools=[NOW], tool_choice="none"), UNABLE, config) == ToolUse()


def test_a_template_that_shows_calls_in_an_unknown_style_refuses_tools_unless_they_are_forced() -> None:
    odd = ChatTemplate("{{ tools }} call them by <invoke>", {})
    with pytest.raises(UnsupportedParameter, match="in a format that is not known here"):
        check_tools(fields(tools=[NOW]), odd, CONFIG)
    forced = check_tools(fields(tools=[NOW], tool_choice="required"), odd, CONFIG)
    assert forced.style is ToolStyle.HERMES, "a grammar needs no teaching"


def test_the_style_can_be_set() -> None:
    config = replace(CONFIG, tool_call_parser="pythonic")
    assert check_tools(fields(tools=[NOW]), ABLE, config).style is ToolStyle.PYTHONIC
