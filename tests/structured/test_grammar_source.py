from __future__ import annotations

import pytest

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar
from tests.structured.tiny_grammars import VOCABULARY, fits, schema

OBJECT = '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}'


@pytest.mark.parametrize("text", ['{"a":1}', '{"a": 1}', '{\n  "a": 1\n}', '{\r\n\t"a": 1\r\n}'])
def test_json_may_be_laid_out(text: str) -> None:
    assert fits(schema(OBJECT), text)


@pytest.mark.parametrize("text", [' {"a":1}', '{  "a":1}', '{"a":1}\n', '{\n\n"a":1}', "{\n" + " " * 41 + '"a":1}'])
def test_white_space_does_not_go_on_for_ever(text: str) -> None:
    assert not fits(schema(OBJECT), text)


def test_white_space_may_be_forbidden_or_described() -> None:
    assert fits(schema(OBJECT, ""), '{"a":1}')
    assert not fits(schema(OBJECT, ""), '{"a": 1}')
    assert fits(schema(OBJECT, "[ ]{0,3}"), '{"a":   1}')


@pytest.mark.parametrize(
    ("kind", "source", "good", "bad"),
    [
        ("choice", '["a\\"b", "c|d"]', 'a"b', "c"),
        ("choice", '["a\\nb", "\\u00fc"]', "a\nb", "u"),
        ("grammar", 'root ::= "a" | "b" root', "bba", "bb"),
        ("grammar", 'start: "a" start | "."', "aa.", "aa"),
        ("grammar", '?start: "a" start | "."', "aa.", "aa"),
        ("grammar", 'start: "a" start | "::="', "aa::=", "aa"),
        ("regex", "^a.c$", "abc", "a\nc"),
    ],
)
def test_describes(kind: str, source: str, good: str, bad: str) -> None:
    grammar = compile_grammar(GrammarSpec(kind, source, "x"), VOCABULARY)
    assert fits(grammar, good)
    assert not fits(grammar, bad)
