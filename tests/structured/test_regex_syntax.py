"""Against Python's re, which reads plain ASCII patterns as everyone does."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.structured.regex_syntax import CharAutomaton, CharSet, char_automaton
from tests.structured.patterns import PATTERNS


def matches(automaton: CharAutomaton, text: str) -> bool:
    """By the definition: the states that the text can lead to."""
    states = closure(automaton, {0})
    for char in text:
        moved = {end for state in states for chars, end in automaton.moves[state] if chars.has(char)}
        states = closure(automaton, moved)
    return len(automaton.moves) - 1 in states


def closure(automaton: CharAutomaton, states: set[int]) -> set[int]:
    while not states.issuperset(more := {end for state in states for end in automaton.free_moves[state]}):
        states = states | more
    return states


@given(pattern=PATTERNS, text=st.text("abc01_ -.\n", max_size=8))
@example(r"^a|b$", "a")
@example("[a-c-]", "-")
@example("a{2,3}", "aaaa")
@example("[^\\D]", "1")
@example("[a--]", "")
@settings(max_examples=400, deadline=None)
def test_matches_what_re_matches(pattern: str, text: str) -> None:
    automaton = char_automaton(pattern)
    try:
        expected = re.fullmatch(pattern, text, re.ASCII) is not None
    except (FutureWarning, re.error):  # an operator in some dialects; a range that goes backwards
        assert automaton is None
        return
    if automaton is not None:
        assert matches(automaton, text) == expected


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"(\d{3}-)+[a-z ]*", ["123-", "123-456-a b"], ["123", "-", "123-A"]),
        (r"^[\w.+-]+@[a-z.]{2,}$", ["a.b+c@d.e"], ["@de", "a@b"]),
        (r"(?:yes|no|)\.?", ["yes.", "no", "", "."], ["maybe", "yesno"]),
        (r"\[\x2d\]", [], []),
        (r"\/\-\n\t[\]\\^]", ["/-\n\t]", "/-\n\t\\", "/-\n\t^"], ["/-\n\ta"]),
        (r"[à-ü]+[^x]", ["éß"], ["é", "éx"]),
    ],
)
def test_reads_ordinary_patterns(pattern: str, inside: list[str], outside: list[str]) -> None:
    automaton = char_automaton(pattern)
    assert (automaton is not None) == bool(inside)
    if automaton is not None:
        assert all(matches(automaton, text) for text in inside)
        assert not any(matches(automaton, text) for text in outside)


@pytest.mark.parametrize(
    "pattern",
    [
        *("a*?", "a++", "a**", "a{2}{3}", "a{,3}", "a{3,2}", "a{x}", "a{1001}", "{", "*", "(", ")", "(a", "a)", "a]"),
        *("[", "[]", "[]a]", "[[:alpha:]]", "[a&&b]", "[a--b]", "[a--]", "[a~~b]", "[b-a]", r"[a-\d]", "[a", "\\"),
        *(r"\b", r"\p{L}", r"\x41", r"\1", r"\A", r"\<", "(?i)a", "(?=a)", "(?P<n>a)", "^a|b", "a|b$", "a^b", "a$b"),
        *("(" * 41 + ")" * 41, "(a{100}){100}", "((a?){1000}){1000}"),
    ],
)
def test_what_dialects_read_differently_and_what_is_large_is_not_read(pattern: str) -> None:
    assert char_automaton(pattern) is None


def test_only_ascii_members_of_a_kind_are_known() -> None:
    word = CharSet((("é", "é"),), frozenset({"w"}))
    assert word.has("a") is True
    assert word.has("é") is True
    assert word.has("ü") is None
    assert word.has("-") is False
    assert CharSet((), frozenset({"S"}), negated=True).has("\v") is True
