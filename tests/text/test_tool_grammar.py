"""The grammar of calls and the parser of calls belong together: what is written under the one, the other reads."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar
from service.structured.grammar_matcher import CompiledGrammar
from service.structured.token_bitmask import TokenBitmask
from service.text.tool_calls import CallDelta, TextDelta, ToolStyle, make_router
from service.text.tool_grammar import CallableTool, CallRules, call_grammar
from tests.examples import examples
from tests.structured.masks import allowed_ids
from tests.structured.tiny_grammars import END_ID, TOKENIZER, VOCABULARY, fits

WEATHER = CallableTool(
    "get-weather",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 4},
            "days": {"type": "integer", "minimum": 0, "maximum": 9},
            "units": {"$ref": "#/$defs/units"},
            "hourly": {"type": ["boolean", "null"]},
            "spans": {"type": "array", "items": {"type": ["boolean", "null"]}, "maxItems": 2},
        },
        "required": ["city", "units"],
        "$defs": {"units": {"enum": ["C", "F"]}},
    },
    is_strict=True,
)
NOW = CallableTool("now", None, is_strict=False)
MASKER = TokenBitmask(1, VOCABULARY.size, VOCABULARY.eos_token_ids)


def grammar_of(style: ToolStyle, rules: CallRules, *tools: CallableTool) -> CompiledGrammar:
    return compile_grammar(GrammarSpec("lark", call_grammar(style, tools, rules), "tools"), VOCABULARY)


GRAMMARS = {
    (style, parallel): grammar_of(style, CallRules(True, parallel), WEATHER, NOW)
    for style in ToolStyle
    for parallel in (True, False)
}


def wander(grammar: CompiledGrammar, seed: int, longest: int = 4000) -> str:
    """What a model says that draws among the allowed tokens at random, the end if it may; fails if it does not end."""
    draws, matcher, drawn = random.Random(seed), grammar.start(), list[int]()
    while len(drawn) < longest:
        allowed = allowed_ids(np.asarray(MASKER.begin([matcher], [0]).wait())[0])
        token_id = END_ID if END_ID in allowed else draws.choice(allowed)
        assert matcher.accept(token_id)
        if token_id != END_ID:
            drawn.append(token_id)
        if token_id == END_ID or matcher.is_finished:
            return TOKENIZER.decode(drawn)
    raise AssertionError("it does not come to an end")


def read(style: ToolStyle, text: str) -> tuple[str, list[tuple[str, Any]]]:
    """Content and calls, as the stream's parser tells them apart."""
    router = make_router(style, {WEATHER.name, NOW.name})
    calls: list[list[str]] = []
    content = ""
    for delta in [*router.push(text), *router.flush()]:
        match delta:
            case TextDelta(piece):
                content += piece
            case CallDelta(_, str(name), arguments):
                calls.append([name, arguments])
            case CallDelta(index, None, arguments):
                calls[index][1] += arguments
    return content, [(name, json.loads(arguments)) for name, arguments in calls]


def is_legal(name: str, arguments: Any) -> bool:
    if name == NOW.name:
        return arguments == {}
    assert name == WEATHER.name
    return (
        {"city", "units"} <= set(arguments) <= {"city", "units", "days", "hourly", "spans"}
        and len(arguments["city"]) <= 4
        and arguments["units"] in ("C", "F")
        and arguments.get("days", 0) in range(10)
        and arguments.get("hourly") in (True, False, None)
        and all(each in (True, False, None) for each in arguments.get("spans", []))
    )


@given(style=st.sampled_from(list(ToolStyle)), parallel=st.booleans(), seed=st.integers(0, 10_000))
@settings(max_examples=examples(60), deadline=None)
def test_what_is_written_under_the_grammar_is_read_as_legal_calls(style: ToolStyle, parallel: bool, seed: int) -> None:
    content, calls = read(style, wander(GRAMMARS[style, parallel], seed))
    assert content == ""
    assert calls
    assert all(is_legal(name, arguments) for name, arguments in calls)


HERMES_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
TEXTS = {
    ToolStyle.HERMES: (HERMES_CALL, "let me see" + HERMES_CALL, HERMES_CALL + "\n" + HERMES_CALL),
    ToolStyle.LLAMA3_JSON: (
        '{"name": "now", "parameters": {}}',
        None,
        '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}',
    ),
    ToolStyle.MISTRAL: (
        '[TOOL_CALLS] [{"name": "now", "arguments": {}}]',
        None,
        '[TOOL_CALLS][{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]',
    ),
    ToolStyle.PYTHONIC: ("[now()]", None, "[now(), now()]"),
}


@pytest.mark.parametrize("style", list(ToolStyle))
@pytest.mark.parametrize("parallel", [True, False])
def test_without_having_to_call_it_may_be_text(style: ToolStyle, parallel: bool) -> None:
    grammar = grammar_of(style, CallRules(False, parallel), WEATHER, NOW)
    one, after_text, two = TEXTS[style]
    assert fits(grammar, "It is late,\nI think.")
    assert fits(grammar, one)
    assert after_text is None or fits(grammar, after_text)
    assert fits(grammar, two) is parallel
    assert not fits(grammar, one.replace("now", "never"))


@pytest.mark.parametrize("style", list(ToolStyle))
def test_who_must_call_says_nothing_else(style: ToolStyle) -> None:
    one, _, two = TEXTS[style]
    assert fits(GRAMMARS[style, True], one)
    assert fits(GRAMMARS[style, True], two)
    assert not fits(GRAMMARS[style, False], two)
    assert not fits(GRAMMARS[style, True], "It is late.")


@pytest.mark.parametrize("style", list(ToolStyle))
def test_content_of_a_form_may_stand_in_the_place_of_calls(style: ToolStyle) -> None:
    form = '{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}'
    grammar = grammar_of(style, CallRules(False, True, content=form), NOW)
    assert fits(grammar, '{"n": 1}')
    assert fits(grammar, '{"n":1}')
    assert fits(grammar, TEXTS[style][0])
    assert not fits(grammar, "It is late.")


def test_a_marker_that_is_a_special_token() -> None:
    rules = CallRules(True, False, marker=1)
    matcher = grammar_of(ToolStyle.MISTRAL, rules, NOW).start()
    calls = TOKENIZER.encode(' [{"name": "now", "arguments": {}}]', add_special_tokens=False)
    assert all(matcher.accept(token_id) for token_id in [1, *calls])
    assert matcher.is_finished


def test_a_keyword_that_is_not_honoured_is_a_refusal_for_strict_functions_only() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "integer", "not": {"const": 3}}}}
    assert grammar_of(ToolStyle.HERMES, CallRules(True, True), CallableTool("f", odd, is_strict=False))
    with pytest.raises(ValueError, match="not"):
        grammar_of(ToolStyle.HERMES, CallRules(True, True), CallableTool("f", odd, is_strict=True))


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#/$defs/a", "$defs": {}},
        {"properties": {"a b": {}}, "required": ["a b"]},
        {"properties": ["a"]},
        {"properties": None},
        {"properties": {"a": {}}, "required": 1},
        {"properties": {"a": {}}, "required": [{}]},
    ],
)
def test_what_python_cannot_call(parameters: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="f have"):
        call_grammar(ToolStyle.PYTHONIC, [CallableTool("f", parameters, is_strict=False)], CallRules(True, True))


def test_definitions_are_repeated_for_properties_that_refer_and_up_to_a_bound() -> None:
    rules = CallRules(must_call=True, parallel=True)

    def grammar(num_properties: int, value: dict[str, Any]) -> str:
        definitions = {"large": {"enum": ["x" * 1_000]}}
        schema = {"properties": {f"a{i}": value for i in range(num_properties)}, "$defs": definitions}
        return call_grammar(ToolStyle.PYTHONIC, [CallableTool("f", schema, is_strict=True)], rules)

    assert grammar(100, {"type": "boolean"}).count("x" * 1_000) == 0
    assert grammar(100, {"items": {"$ref": "#/$defs/large"}}).count("x" * 1_000) == 100
    with pytest.raises(ValueError, match="the properties have more than 1048576 characters"):
        grammar(2_000, {"$ref": "#/$defs/large"})
