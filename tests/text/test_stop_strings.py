from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.stop_strings import StopMatcher

LETTERS = st.text(alphabet="ab", max_size=30)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), max_size=4)
CUTS = st.lists(st.integers(1, 4), min_size=1, max_size=30)


def by_definition(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the match that completes earliest (of those, the longest), and the match."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return text, None
    end, _, stop = min(ends)
    return text[: end - len(stop)], stop


def cut(text: str, cuts: list[int]) -> list[str]:
    pieces, start, turn = [], 0, 0
    while start < len(text):
        size = cuts[turn % len(cuts)]
        pieces.append(text[start : start + size])
        start, turn = start + size, turn + 1
    return pieces


@given(LETTERS, STOPS, CUTS)
def test_agrees_with_the_definition_however_the_text_is_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece) for piece in cut(text, cuts)) + matcher.flush()
    assert (shown, matcher.stop) == by_definition(text, stops)


@given(LETTERS, STOPS, CUTS)
def test_with_the_stop_shown_nothing_is_held_back(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops, include_stop=True)
    shown = ""
    for end, piece in enumerate(cut(text, cuts), start=1):
        shown += matcher.push(piece)
        assert matcher.stop is not None or shown == "".join(cut(text, cuts)[:end])
    before, stop = by_definition(text, stops)
    assert (shown, matcher.stop) == (before + (stop or ""), stop)


@given(LETTERS, STOPS, CUTS)
def test_holds_back_only_the_longest_end_that_begins_a_stop(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher, pushed, shown = StopMatcher(stops), "", ""
    for piece in cut(text, cuts):
        pushed += piece
        shown += matcher.push(piece)
        if matcher.stop is not None:
            return
        ends = [pushed[-size:] for size in range(1, len(pushed) + 1)]
        held = max((len(end) for end in ends if any(stop.startswith(end) for stop in stops)), default=0)
        assert shown == pushed[: len(pushed) - held]


@pytest.mark.parametrize(
    ("text", "stops", "shown", "stop"),
    [
        ("one\n\ntwo", ["\n\n"], "one", "\n\n"),
        ("one two", ["two", "o"], "", "o"),
        ("abcd", ["bcd", "cd"], "a", "bcd"),
        ("naïve 你好吗", ["好"], "naïve 你", "好"),
        ("aab", ["aab"], "", "aab"),
        ("never", [], "never", None),
    ],
)
def test_scenes(text: str, stops: list[str], shown: str, stop: str | None) -> None:
    matcher = StopMatcher(stops)
    assert matcher.push(text) + matcher.flush() == shown
    assert matcher.stop == stop


def test_nothing_comes_after_a_match() -> None:
    matcher = StopMatcher(["x"])
    assert matcher.push("ax") == "a"
    assert matcher.push("more") + matcher.flush() == ""


def test_long_stops_cost_no_more_than_short_ones() -> None:
    matcher = StopMatcher(["a" * 1023 + "b"] * 4)
    started_s = time.thread_time()
    for _ in range(5000):
        matcher.push("aaaa")
    assert time.thread_time() - started_s < 1
