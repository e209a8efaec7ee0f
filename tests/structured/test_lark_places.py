"""Of texts under Lark grammars: one place, one mask, checked against llguidance's own."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar
from service.structured.grammar_source import as_lark
from service.structured.lark_places import lark_places
from service.structured.places import AnyPlaces
from tests.structured.lark_grammars import lark_grammars
from tests.structured.one_place_one_mask import check_one_place_one_mask
from tests.structured.tiny_grammars import VOCABULARY, ids

NAMES = 'start: NAME ("+" NAME)*\nNAME: /[a-z_][a-z0-9_]*/\n%ignore / /'
SUMS = 'root ::= term (" "? [-+] " "? term)*\nterm ::= [0-9]+ | [a-z]+ | "(" root ")"'
JSON = r"""
?start: value
value: object | array | STRING | NUMBER | "true" | "false" | "null"
array: "[" [value ("," value)*] "]"
object: "{" [pair ("," pair)*] "}"
pair: STRING ":" value
STRING: /"([^"\\]|\\["\\bn])*"/
%import common.NUMBER
%import common.WS_INLINE
%ignore WS_INLINE
"""
QUERIES = r"""
start: "select"i (NAME | "count" "(" NAME ")") "from"i NAME ["where"i test (("and" | "or") test)*]
test: NAME ("=" | "<" | "<=") (NAME | INT) | "(" test ")" | "not" test
NAME: /[a-z]+/
INT: /[0-9]+/
%ignore " "
"""
LETTERS = [token_id for token_id in range(400) if VOCABULARY.token_bytes(token_id) in b'abc ()[]{}",:+=<1']


def followed(grammar: str) -> AnyPlaces:
    places = lark_places(as_lark(grammar), VOCABULARY.token_bytes)
    assert places is not None
    return places


def place_of(places: AnyPlaces, text: str) -> int | None:
    place = places.first
    for token_id in ids(text):
        place = places.after(place, token_id)
    return place


@given(grammar=lark_grammars(), seed=st.integers(0, 99))
@settings(max_examples=150, deadline=None)
@example('start: WORD T\nWORD: /[a-b]+/\nT: "a".."c"\n%ignore "a"', 0)
@example("start: (/a*b/)?", 1)
@example('start: x\nx: x "+" x | "ab" | x?\nWORD: "a"\nT: "b"', 1)
def test_one_place_one_mask(grammar: str, seed: int) -> None:
    places = lark_places(grammar, VOCABULARY.token_bytes)
    if places is None:
        return
    try:
        prototype = compile_grammar(GrammarSpec("lark", grammar, "x"), VOCABULARY).start().constraint
    except ValueError:
        return  # it describes nothing that can be written
    check_one_place_one_mask(places, prototype, seed, LETTERS)


@pytest.mark.parametrize("grammar", [NAMES, SUMS, JSON, QUERIES], ids=["names", "sums", "json", "queries"])
@pytest.mark.parametrize("seed", range(3))
def test_texts_meet_at_places(grammar: str, seed: int) -> None:
    compiled = compile_grammar(GrammarSpec("grammar", grammar, "x"), VOCABULARY)
    assert compiled.places is not None, "the compiler follows them"
    assert check_one_place_one_mask(compiled.places, compiled.start().constraint, seed, LETTERS) > 20


@pytest.mark.parametrize(
    ("grammar", "one", "other"),
    [
        (NAMES, "a +", "the + number + of +"),
        (NAMES, "a + b", "the + number + o_f"),
        (SUMS, "(a + ", "(12 - b - c - "),
        (SUMS, "(a + (b)", "(a + (b - c) - (d)"),
        (SUMS, "(a)", "(a) + (b - c)"),
        (JSON, "[1, ", '[true, "e", '),
        (JSON, '{"a": 1, "b"', '{"b": [{}], "c": "d", "e"'),
        (JSON, '[{"a": 1}', '[{"a": 1, "b": {}}, {}'),
        (QUERIES, "select a from b where c = 1 and", "SELECT count(a) From b where (d < e) and x = y and"),
    ],
)
def test_texts_that_may_go_on_alike_are_at_one_place(grammar: str, one: str, other: str) -> None:
    places = followed(grammar)
    assert place_of(places, one) is not None
    assert place_of(places, one) == place_of(places, other)


@pytest.mark.parametrize(
    ("grammar", "one", "other"),
    [
        (NAMES, "a", "a +"),
        (SUMS, "(a", "((a"),
        (SUMS, "1", "a"),
        (JSON, '{"a": [', '[{"a": ['),
        (NAMES, "a", "a "),
    ],
)
def test_others_are_at_others(grammar: str, one: str, other: str) -> None:
    places = followed(grammar)
    assert None not in (place_of(places, one), place_of(places, other))
    assert place_of(places, one) != place_of(places, other)


def test_what_the_grammar_does_not_allow_is_not_known() -> None:
    places = followed(NAMES)
    for text in ("+", " a", "a + +", "a b", "1"):
        assert place_of(places, text) is None
