from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.text.tool_calls import CallDelta, TextDelta, ToolDelta, ToolStyle, make_router, style_of_template

NAMES = ("get_weather", "now", "get")


def route(style: str, text: str, size: int) -> tuple[str, list[tuple[str, str]]]:
    """Content, and name and arguments of each call, read in pieces of `size`."""
    router, deltas = make_router(ToolStyle(style), NAMES), []
    for start in range(0, len(text), size):
        deltas += router.push(text[start : start + size])
    return assemble([*deltas, *router.flush()])


def assemble(deltas: list[ToolDelta]) -> tuple[str, list[tuple[str, str]]]:
    content, calls = "", []
    for delta in deltas:
        if isinstance(delta, TextDelta):
            content += delta.text
            continue
        if delta.name is not None:
            assert delta.call_index == len(calls)
            calls.append((delta.name, delta.arguments))
        else:
            assert delta.call_index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    return content, calls


PARIS = ("get_weather", {"city": 'Paris "x" {[}', "days": [1, {"a": None}]})
PARIS_JSON = json.dumps({"name": PARIS[0], "arguments": PARIS[1]})
NOW = ("now", {})
TWO_CALLS = f'<tool_call>{PARIS_JSON}</tool_call>\n<tool_call>\n{{"name": "now"}}\n</tool_call>'
UNKNOWN_CALL = '<tool_call>{"name": "rm_rf", "arguments": {}}</tool_call>'
LLAMA_CALLS = f'<|python_tag|>{PARIS_JSON}; {{"name": "now", "parameters": {{"tz": "x"}}}}'
KEYWORDS = ("get", {"key": "a=b,c", "n": -1.5, "flag": True})
# fmt: off
CASES = [
    ("hermes", f"<tool_call>\n{PARIS_JSON}\n</tool_call>", "", [PARIS]),
    ("hermes", f"Let me see.\n{TWO_CALLS}", "Let me see.", [PARIS, NOW]),
    ("hermes", "no calls < here\n", "no calls < here\n", []),
    ("hermes", UNKNOWN_CALL, UNKNOWN_CALL, []),
    ("hermes", "<tool_call> not json", "<tool_call> not json", []),
    ("hermes", '<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>', "", [("now", {"a": 1})]),
    ("hermes", '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("now", {"a": 1})]),
    ("hermes", "ends in a marker <tool_c", "ends in a marker <tool_c", []),
    ("llama3_json", json.dumps({"name": "now", "parameters": {}}), "", [NOW]),
    ("llama3_json", LLAMA_CALLS, "", [PARIS, ("now", {"tz": "x"})]),
    ("llama3_json", '{"answer": 42}', '{"answer": 42}', []),
    ("llama3_json", '{"name": "Bob", "age": 3}', '{"name": "Bob", "age": 3}', []),
    ("llama3_json", '{"name": "now",]', "", [NOW]),
    ("llama3_json", "plain", "plain", []),
    ("llama3_json", ' {"name', ' {"name', []),
    ("mistral", f"[TOOL_CALLS] [{PARIS_JSON}]", "", [PARIS]),
    ("mistral", f'[{PARIS_JSON}, {{"name": "now", "arguments": {{}}}}]', "", [PARIS, NOW]),
    ("mistral", "[1] is a footnote", "[1] is a footnote", []),
    ("mistral", "[TOOL", "[TOOL", []),
    ("pythonic", "[get_weather(city='Paris \"x\" {[}', days=[1, {'a': None}])]", "", [PARIS]),
    ("pythonic", '[now(), get(key="a=b,c", n=-1.5, flag=true)]', "", [NOW, KEYWORDS]),
    ("pythonic", "[see the list](of things)", "[see the list](of things)", []),
    ("pythonic", "[rm()]", "[rm()]", []),
    ("pythonic", "text", "text", []),
]
# fmt: on


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("style", "text", "content", "calls"), CASES)
def test_reads(style: str, text: str, content: str, calls: list[tuple[str, object]], size: int) -> None:
    said, made = route(style, text, size)
    assert said == content
    assert [(name, json.loads(arguments)) for name, arguments in made] == calls


@given(
    st.sampled_from(list(ToolStyle)),
    st.lists(
        st.sampled_from(
            ["<tool_call>", "</tool_call>", PARIS_JSON, *'{}[]"(), \n\\', "now", "a=1", '{"name":"now"']
        ),
        max_size=12,
    ).map("".join),
    st.integers(1, 8),
)  # fmt: skip
@example(ToolStyle.LLAMA3_JSON, '{"name":"now",]', 1)
@example(ToolStyle.PYTHONIC, "[now()]\n,x", 1)
def test_does_not_depend_on_how_the_text_is_cut(style: ToolStyle, text: str, size: int) -> None:
    assert route(style, text, size) == route(style, text, 1000)


@given(st.sampled_from(list(ToolStyle)), st.text(max_size=60))
def test_text_stays_text(style: ToolStyle, text: str) -> None:
    assert route(style, text, 3) == (text, [])


@pytest.mark.parametrize(
    ("style", "before", "fragment"),
    [
        ("hermes", '<tool_call>{"name": "get", "arguments": {"text": "', "once upon"),
        ("llama3_json", '{"name": "get", "parameters": {"text": "', "once upon"),
        ("mistral", '[{"name": "get", "arguments": {"text": "', "once upon"),
    ],
)
def test_arguments_come_as_they_are_written(style: str, before: str, fragment: str) -> None:
    router = make_router(ToolStyle(style), NAMES)
    assert assemble(router.push(before))[1] == [("get", '{"text": "')]
    assert router.push(fragment) == [CallDelta(0, None, fragment)]


def test_a_python_argument_comes_when_it_is_complete() -> None:
    router = make_router(ToolStyle.PYTHONIC, NAMES)
    assert router.push("[get(") == [CallDelta(0, "get", "{")]
    assert router.push("a='x'") == []
    assert router.push(", b") == [CallDelta(0, None, '"a": "x"')]


def test_a_call_that_is_cut_off_keeps_what_came() -> None:
    assert route("hermes", '<tool_call>{"name": "get", "arguments": {"a": 1', 5) == ("", [("get", '{"a": 1')])


@pytest.mark.parametrize(
    ("source", "style"),
    [
        ("{{ '<tool_call>' }}", ToolStyle.HERMES),
        ("{{ '[TOOL_CALLS]' }}", ToolStyle.MISTRAL),
        ("{{ '{\"name\": \"' + name + '\", ' }}{{ '\"parameters\": ' }}", ToolStyle.LLAMA3_JSON),
        ("[func_name1(params_name1=params_value1)]", ToolStyle.PYTHONIC),
        ("{{ messages }}", None),
    ],
)
def test_the_template_tells_the_style(source: str, style: ToolStyle | None) -> None:
    assert style_of_template(source) is style
