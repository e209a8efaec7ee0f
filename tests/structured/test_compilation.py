from __future__ import annotations

import json

import pytest

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar, read_seconds
from tests.structured.tiny_grammars import VOCABULARY, ids


def test_a_grammar_of_which_no_text_can_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\w"):
        compile_grammar(GrammarSpec("regex", "[^\\x00-\\U0010ffff]", "regex"), VOCABULARY)


def test_reading_is_timed_and_refuses_as_compiling_does() -> None:
    assert 0 <= read_seconds(GrammarSpec("regex", "[a-z]+", "regex"), VOCABULARY) < 5
    with pytest.raises(ValueError, match="neither Lark nor GBNF"):
        read_seconds(GrammarSpec("grammar", 'root ::= "a', "x"), VOCABULARY)


def test_an_object_of_a_thousand_properties_can_be_written() -> None:
    """None of them required: the most rows and items that a schema of 64 KiB needs."""
    schema = {"type": "object", "properties": {f"k{n}": {"type": "string"} for n in range(1000)}}
    matcher = compile_grammar(GrammarSpec("json_schema", json.dumps(schema), "x"), VOCABULARY).start()
    for token_id in ids('{"k7": "a", "k900": "b"}'):
        matcher.constraint.compute_bitmask()
        assert matcher.accept(token_id)
    assert matcher.is_finished
