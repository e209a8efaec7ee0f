"""One place, one mask: the law that lets texts share masks, checked against llguidance's own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.core.grammar import GrammarSpec
from service.structured.compilation import compile_grammar
from service.structured.places import AnyPlaces
from service.structured.regex_places import regex_places
from tests.structured.one_place_one_mask import check_one_place_one_mask
from tests.structured.patterns import PATTERNS
from tests.structured.tiny_grammars import VOCABULARY, ids, regex

CALLS = r"(.|\n)*<call>"
TEXT_OR_CALLS = f'start: block* text\nblock: open "x"\nopen[lazy]: /{CALLS}/\ntext: /(.|\\n)*/'


def followed(pattern: str, *, ends_at_match: bool = False) -> AnyPlaces:
    places = regex_places(pattern, VOCABULARY.token_bytes, ends_at_match=ends_at_match)
    assert places is not None
    return places


def place_of(places: AnyPlaces, tokens: Sequence[int]) -> int | None:
    place = places.first
    for token_id in tokens:
        place = places.after(place, token_id)
    return place


@given(pattern=PATTERNS, seed=st.integers(0, 99))
@example(r"(\d{3}-)+[a-z ]*", 1)
@example(r"([A-Z][a-z]+( [a-z]+)*\. )+", 2)
@example(r"[^a]*é.*", 3)
@settings(max_examples=150, deadline=None)
def test_one_place_one_mask(pattern: str, seed: int) -> None:
    places = regex_places(pattern, VOCABULARY.token_bytes)
    try:
        grammar = regex(pattern)
    except ValueError:
        return  # it describes nothing that can be written
    if places is not None:
        check_one_place_one_mask(places, grammar.start().constraint, seed)


@pytest.mark.parametrize("seed", range(5))
def test_text_before_a_call_has_few_places(seed: int) -> None:
    grammar = compile_grammar(GrammarSpec("lark", TEXT_OR_CALLS, "tools"), VOCABULARY)
    places = followed(CALLS, ends_at_match=True)
    assert check_one_place_one_mask(places, grammar.start().constraint, seed) > 40


def test_texts_that_may_go_on_alike_are_at_one_place() -> None:
    places = followed(r"(\d{3}-)+[a-z ]*")
    assert place_of(places, ids("123-456-")) == place_of(places, ids("789-"))
    assert place_of(places, ids("123-a")) == place_of(places, ids("123-the lazy dog "))
    assert place_of(places, ids("123-a")) != place_of(places, ids("123-"))


def test_tokens_may_cut_characters() -> None:
    places = followed("[é-ü]*x")
    tokens = [token_id for byte in "éé".encode() for token_id in _byte(byte)]
    visited = [place_of(places, tokens[:count]) for count in range(len(tokens) + 1)]
    assert None not in visited
    assert visited[0] == visited[2] == visited[4]
    assert visited[1] == visited[3] != visited[0]


def _byte(value: int) -> list[int]:
    return [token_id for token_id in range(400) if VOCABULARY.token_bytes(token_id) == bytes([value])][:1]


def test_what_is_not_known_stays_so() -> None:
    places = followed(r"\w*")
    assert place_of(places, ids("a")) is not None
    assert place_of(places, ids("aé")) is None, "which letters there are depends on the version of Unicode"
    assert place_of(places, ids("aéa")) is None


def test_after_the_match_nothing_is_known() -> None:
    places = followed(CALLS, ends_at_match=True)
    assert place_of(places, ids("<call")) is not None
    assert place_of(places, ids("<call>")) is None
    assert place_of(places, ids("a<call> b")) is None
