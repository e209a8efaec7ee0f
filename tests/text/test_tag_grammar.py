"""Structural tags: which texts they allow, and which of them are refused."""

from __future__ import annotations

from typing import Any

import pytest

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar
from service.structured.grammar_matcher import CompiledGrammar
from service.text.tag_grammar import tag_grammar
from tests.structured.tiny_grammars import VOCABULARY, fits

NUMBER = {"type": "integer", "maximum": 99}
NUMBERS = {"type": "array", "items": NUMBER, "maxItems": 2}
A_TAG = {"type": "tag", "begin": "<f=a>", "content": {"type": "json_schema", "json_schema": NUMBER}, "end": "</f>"}
B_TAG = {"begin": "<f=b>", "content": {"type": "json_schema", "json_schema": NUMBERS}, "end": "</f>"}
QUOTED = {"type": "tag", "begin": '\\"(', "content": {"type": "const_string", "value": ".*/\n"}, "end": "é|"}
THOUGHT = {"type": "tag", "begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}


def grammar_of(tag: Any) -> CompiledGrammar:
    return compile_grammar(GrammarSpec("lark", tag_grammar(tag, 16), "structural_tag"), VOCABULARY)


def triggered(**more: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": ["<f="], "tags": [A_TAG, B_TAG], **more}


def old(**more: Any) -> dict[str, Any]:
    structures = [
        {"begin": "<f=a>", "schema": NUMBER, "end": "</f>"},
        {"begin": "<f=b>", "schema": NUMBERS, "end": "</f>"},
    ]
    return {"structures": structures, "triggers": ["<f="], **more}


A, B, TWO = "<f=a>7</f>", "<f=b>[1, 2]</f>", "I see.\n<f=a>7</f> and\n<f=b>[1, 2]</f><f=a>8</f>, < f=c> done"
WRONG = ("<f=a>100</f>", "<f=a>[1]</f>", "<f=b>7</f>", "<f=c>7</f>", "x <f= y", "<f=a>7", "<f=a>7</f>x<f=a>7x")


@pytest.mark.parametrize("tag", [old(), old(type="structural_tag"), {"format": triggered()}])
def test_text_is_free_and_behind_a_trigger_a_tag_follows(tag: Any) -> None:
    grammar = grammar_of(tag)
    assert all(fits(grammar, text) for text in ("", "Plain, <text>.", A, B, TWO, f"{A} then {B}"))
    assert not any(fits(grammar, text) for text in WRONG)


@pytest.mark.parametrize(
    ("at_least_one", "stop_after_first", "allowed", "refused"),
    [
        (True, False, (A, f"{A} and {B}."), ("", "text", f"text {A}")),
        (False, True, ("", "text", A, f"text {A}"), (f"{A}{B}", f"{A} text")),
        (True, True, (A, B), ("", "text", f"text {A}", f"{A}{B}", f"{A} text")),
    ],
)
def test_how_many_tags_there_are(
    at_least_one: bool, stop_after_first: bool, allowed: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    grammar = grammar_of({"format": triggered(at_least_one=at_least_one, stop_after_first=stop_after_first)})
    assert all(fits(grammar, text) for text in allowed)
    assert not any(fits(grammar, text) for text in (*refused, *WRONG))


def test_each_trigger_has_its_own_tags() -> None:
    grammar = grammar_of({"format": triggered(triggers=["<f=a", "<f=b"])})
    assert all(fits(grammar, text) for text in ("", A, B, TWO, "<f= may be text", "<f=c>7</f>"))
    assert not any(fits(grammar, text) for text in ("<f=a>[1]</f>", "<f=b>7</f>", "<f=ac"))


@pytest.mark.parametrize(
    ("part", "allowed", "refused"),
    [
        ({"type": "const_string", "value": '"\\n'}, ['"\\n'], ["", '"\n']),
        ({"type": "json_schema", "json_schema": True, "style": "json"}, ['{"a": [1]}', "null"], ["", "x"]),
        ({"type": "any_text", "excludes": []}, ["", "x\ny"], []),
        (QUOTED, ['\\"(.*/\né|'], ['\\"(x/\né|', "", '"(.*/\né|']),
        (THOUGHT, ["<t></t>", "<t>a\n<t></t>"], ["<t>", "x<t></t>", "<t></t>x", "<t></t></t>"]),
        ({"type": "sequence", "elements": [THOUGHT, triggered()]}, [f"<t>so</t>{A} x", "<t></t>"], [A, "<t>"]),
        ({"type": "sequence", "elements": [A_TAG, {"type": "any_text"}]}, [A, f"{A} text"], ["", "x", f"x{A}"]),
        ({"type": "or", "elements": [A_TAG, THOUGHT]}, [A, "<t>x</t>"], ["", B, f"{A}<t></t>"]),
        (
            {"type": "tags_with_separator", "tags": [A_TAG, B_TAG], "separator": "; "},
            ["", A, f"{A}; {B}; {A}"],
            [f"{A}{B}", f"{A}; "],
        ),
        (
            {"type": "tags_with_separator", "tags": [A_TAG], "separator": "", "at_least_one": True},
            [A, A + A],
            ["", f"{A}x"],
        ),
        (
            {"type": "tags_with_separator", "tags": [A_TAG], "separator": ",", "stop_after_first": True},
            ["", A],
            [f"{A},{A}"],
        ),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else "",
)
def test_parts_say_what_stands_there(part: Any, allowed: list[str], refused: list[str]) -> None:
    grammar = grammar_of({"format": part})
    assert all(fits(grammar, text) for text in allowed)
    assert not any(fits(grammar, text) for text in refused)


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ({}, "the tag.structures must be a list"),
        ({"type": "json_schema"}, "type must be structural_tag"),
        ({"format": []}, "format must be an object"),
        ({"format": {"type": "regex", "pattern": "a"}}, "format.type must be one of"),
        ({"format": triggered(), "structures": []}, "the tag: structures is not supported"),
        ({"format": triggered(excludes=["x"])}, "format: excludes is not supported"),
        ({"format": triggered(triggers=[""])}, "format.triggers must hold texts"),
        ({"format": triggered(triggers=["<f=", "x"])}, 'format.triggers: no tag begins with "x"'),
        ({"format": triggered(triggers=["<f=", "<f"])}, 'format: "<f=a>" must begin with one of the triggers'),
        ({"format": triggered(triggers=["y"])}, 'format: "<f=a>" must begin with one of the triggers'),
        ({"format": triggered(triggers=[str(n) for n in range(17)])}, "at most 16"),
        ({"format": triggered(tags=[{**A_TAG, "begin": ["<f="]}])}, "format.tags[0].begin must be a text"),
        ({"format": triggered(tags=[{**A_TAG, "content": {"type": "grammar"}}])}, "format.tags[0].content.type must"),
        ({"format": triggered(at_least_one=1)}, "format.at_least_one must be true or false"),
        ({"format": {"type": "json_schema", "json_schema": False}}, "format.json_schema must be an object"),
        ({"format": {"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}}, "format: style is not"),
        (
            {"format": {"type": "sequence", "elements": [{"type": "any_text"}, A_TAG]}},
            "format.elements[0]: text that nothing ends",
        ),
        (
            {"format": {"type": "tag", "begin": "a", "content": triggered(), "end": "z"}},
            "format.content: text that nothing ends",
        ),
        ({"structures": [{"begin": "a", "end": "b"}], "triggers": ["a"]}, "structures[0].schema must be an object"),
        ({"structures": [{"begin": "a", "schema": True}], "triggers": ["a"]}, "structures[0].end must be a text"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_does_not_map_is_refused_by_its_place(tag: Any, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        tag_grammar(tag, 16)
    assert words in str(caught.value)
