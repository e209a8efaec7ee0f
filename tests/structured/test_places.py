"""What is remembered of places is bounded; what they mean is tested with what they follow."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from service.structured import places as module
from service.structured.lark_places import lark_places
from service.structured.places import AnyPlaces
from service.structured.regex_places import regex_places
from tests.structured.tiny_grammars import VOCABULARY, ids

LETTERS = [token_id for token_id in range(400) if VOCABULARY.token_bytes(token_id).isalpha()]
MANY_PLACES = "(.*a.{35}|.*b.{37}|.*c.{33})"
WIDE = " | ".join(f'"{chr(97 + i % 26)}{i}" rest' for i in range(60))
NESTED = f'start: rest\nrest: "(" rest ")" | NAME rest? | {WIDE}\nNAME: /[a-z]/'
DEEP = 'start: "(" start ")" | "x"'


def followed(places: AnyPlaces | None) -> AnyPlaces:
    assert places is not None
    return places


def of_regex(pattern: str) -> AnyPlaces:
    return followed(regex_places(pattern, VOCABULARY.token_bytes))


def place_of(places: AnyPlaces, text: str) -> int | None:
    place = places.first
    for token_id in ids(text):
        place = places.after(place, token_id)
    return place


def walk(places: AnyPlaces, num_walks: int, num_steps: int) -> None:
    draws = random.Random(0)
    for _ in range(num_walks):
        place = places.first
        for _ in range(num_steps):
            place = places.after(place, draws.choice(LETTERS))


def test_all_of_it_takes_no_more_than_it_says() -> None:
    tracemalloc.start()
    try:
        kept = [of_regex("[a-z]{1,990}" * 4), of_regex(MANY_PLACES), of_regex(r"(.|\n)*")]
        walk(kept[1], 10, 300)
        kept[2]._moves = {(number, 1000 + number): 1000 + number for number in range(module._MAX_MOVES)}
        assert kept[1]._size_in_all > module._MAX_SIZE_IN_ALL - module._MAX_SIZE
        assert tracemalloc.get_traced_memory()[0] < module.MAX_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("grammar", [NESTED, DEEP], ids=["wide", "deep"])
def test_rows_of_a_grammar_take_no_more_either(grammar: str) -> None:
    tracemalloc.start()
    try:
        places = followed(lark_places(grammar, VOCABULARY.token_bytes))
        place, num_known = places.first, 0
        while place is not None:
            num_known += 1
            place = places.after(place, ids("(")[0])
        assert num_known > 100
        assert tracemalloc.get_traced_memory()[0] < module.MAX_BYTES
    finally:
        tracemalloc.stop()


def test_a_large_state_on_the_way_is_not_followed() -> None:
    """The token's first character leads to 300 states, its last to one."""
    places = of_regex("a(b?){300}c")
    assert place_of(places, "a") is None
    assert place_of(places, "abc") is None


def test_places_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_SIZE_IN_ALL", 3)
    monkeypatch.setattr(module, "_MAX_MOVES", 2)
    places = of_regex("abcdef")
    assert [place_of(places, text) for text in ("", "a", "ab", "abc")] == [0, 1, 2, None]
    assert len(places._moves) <= 2
    assert of_regex("(a?){300}").first is None
