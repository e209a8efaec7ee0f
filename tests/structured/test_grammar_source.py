from __future__ import annotations

import json
import time

import pytest

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar
from service.structured.grammar_source import grammar_source
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


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("start: <think> A", "start: <[7]> A"),
        ('start: "<think>" <think>', 'start: "<think>" <[7]>'),
        (r'start: "\"<think>" <other>', r'start: "\"<think>" <other>'),
        ("start: /<think>/ <think> // <think>", "start: /<think>/ <[7]> // <think>"),
        ('start: %json {"const": "<think>"} <[3]>', 'start: %json {"const": "<think>"} <[3]>'),
        ('start: "<think>', 'start: "<think>'),
    ],
)
def test_a_token_that_is_text_is_known_by_its_name_too(written: str, read: str) -> None:
    (grammar,) = json.loads(grammar_source(GrammarSpec("grammar", written, "x"), {"<think>": 7}))["grammars"]
    assert grammar["lark_grammar"].startswith(f"{read}\n")


@pytest.mark.parametrize("piece", ['"', '"\\', "/", "<", "<a", "//", '"a'])
def test_names_are_found_in_time_linear_in_the_grammar(piece: str) -> None:
    def seconds(size: int) -> float:
        spec = GrammarSpec("grammar", piece * (size // len(piece)), "x")
        started_s = time.thread_time()
        grammar_source(spec, {"<think>": 7})
        return time.thread_time() - started_s

    assert seconds(400_000) < 1.0, "quadratic, it would take minutes"


def test_a_grammar_that_looks_like_llguidances_own_json_is_lark() -> None:
    """Else schemas in it would come past the limits of schemas."""
    listed = json.dumps({"grammars": [{"json_schema": {"type": "string"}}]})
    with pytest.raises(ValueError, match="1"):
        compile_grammar(GrammarSpec("grammar", listed, "x"), VOCABULARY)
