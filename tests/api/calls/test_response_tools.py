from __future__ import annotations

from typing import Any

import pytest

from service.api.calls.response_tools import ResponseTools, chat_choice, read_tools
from service.errors import InvalidRequest, UnsupportedParameter
from service.protocol.responses import ResponseTool

CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "rain", "description": "Rain.", "parameters": CITY, "strict": True}
CUSTOM = {"type": "custom", "name": "patch", "description": "Patch."}
SEARCH = {"type": "web_search", "external_web_access": False}
SPACE = {"type": "namespace", "name": "mcp", "description": "More.", "tools": [FUNCTION, {**CUSTOM, "name": "note"}]}


def read(*tools: dict[str, Any]) -> ResponseTools:
    return read_tools([ResponseTool.model_validate(tool) for tool in tools])


def test_a_function_is_a_function() -> None:
    tools = read(FUNCTION)
    function = {"name": "rain", "description": "Rain.", "parameters": CITY, "strict": True}
    assert tools.functions == [{"type": "function", "function": function}]
    assert (tools.echoed, tools.ignored) == ([FUNCTION], [])


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    function = read(CUSTOM).functions[0]["function"]
    assert function["parameters"]["required"] == ["input"]
    assert function["parameters"]["properties"] == {"input": {"type": "string"}}
    assert not function["strict"], "the model may answer as it likes"
    assert read(CUSTOM).called_as["patch"].type == "custom"


def test_a_regex_holds_the_text_and_a_lark_grammar_is_shown() -> None:
    regex = {"type": "grammar", "syntax": "regex", "definition": "a|b"}
    function = read({**CUSTOM, "format": regex}).functions[0]["function"]
    assert function["strict"]
    assert function["parameters"]["properties"]["input"] == {"type": "string", "pattern": "^(?:a|b)$"}
    lark = read({**CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'}})
    assert 'start: "x"' in lark.functions[0]["function"]["description"]
    assert lark.ignored == ["tools.format"], "the client is told that nothing holds the text to it"


def test_functions_of_a_namespace_have_its_name_before_their_own() -> None:
    tools = read(FUNCTION, SPACE)
    assert list(tools.called_as) == ["rain", "mcp__rain", "mcp__note"]
    called = tools.called_as["mcp__note"]
    assert (called.type, called.name, called.namespace) == ("custom", "note", "mcp")
    assert tools.places == ["tools[0]", "tools[1].tools[0]", "tools[1].tools[1]"]


@pytest.mark.parametrize("kind", ["web_search", "web_search_preview_2025_03_11", "image_generation", "tool_search"])
def test_what_agents_attach_unasked_is_left_out_and_named(kind: str) -> None:
    tools = read({"type": kind}, FUNCTION)
    assert list(tools.called_as) == ["rain"]
    assert tools.echoed == [FUNCTION], "the answer tells of what is in force"
    assert tools.ignored == [f"tools.{kind}"]


@pytest.mark.parametrize("kind", ["file_search", "code_interpreter", "mcp", "computer", "local_shell", "shell", "x"])
def test_other_tools_are_refused_by_name(kind: str) -> None:
    with pytest.raises(UnsupportedParameter, match=kind) as refused:
        read(FUNCTION, {"type": kind})
    assert refused.value.param == "tools[1].type"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "function"}], "tools[0].name"),
        ([{**SPACE, "name": None}], "tools[0].name"),
        ([FUNCTION, FUNCTION], "tools"),
        ([{**CUSTOM, "format": {"type": "grammar", "syntax": "regex"}}], "tools[0].format.definition"),
        ([{**SPACE, "tools": [{"type": "mcp"}]}], "tools[0].tools[0].type"),
    ],
)
def test_refusals_name_the_field(tools: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(*tools)
    assert refused.value.param == param


def test_fields_that_change_nothing_are_not_named() -> None:
    assert read({**FUNCTION, "defer_loading": True, "mood": 1}).ignored == ["tools.mood"]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("choice", "as_chat"),
    [
        (None, None),
        ("required", "required"),
        ({"type": "function", "name": "rain"}, named("rain")),
        ({"type": "custom", "name": "note"}, named("mcp__note")),
        ({"type": "function", "name": "rain", "namespace": "mcp"}, named("mcp__rain")),
        ({"type": "function", "name": "unknown"}, named("unknown")),
        ({"type": "function"}, {}),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH, {"type": "function", "name": "rain"}]},
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("rain")]}},
        ),
    ],
)
def test_choices(choice: Any, as_chat: Any) -> None:
    assert chat_choice(choice, read(SEARCH, FUNCTION, SPACE)) == as_chat


def test_a_choice_of_a_tool_that_is_left_out_is_refused() -> None:
    with pytest.raises(UnsupportedParameter, match="web_search"):
        chat_choice({"type": "web_search"}, read(SEARCH))
