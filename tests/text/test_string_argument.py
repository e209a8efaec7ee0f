from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.string_argument import StringArgument


def read(pieces: list[str]) -> str:
    reader = StringArgument()
    return "".join([reader.push(piece) for piece in pieces])


def cut(text: str, places: list[int]) -> list[str]:
    ends = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(ends)]


@given(text=st.text(), places=st.lists(st.integers(0, 500)), is_ascii=st.booleans(), indent=st.sampled_from([None, 2]))
def test_the_value_is_what_json_says_however_the_arguments_are_cut(
    text: str, places: list[int], is_ascii: bool, indent: int | None
) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii, indent=indent)
    assert read(cut(arguments, places)) == text


@given(places=st.lists(st.integers(0, 100)))
@pytest.mark.parametrize("arguments", ['{"patch": "x"}', "{}", '{"input": 5}', '["input"]', '{"inpu t": "x"}', "x"])
def test_other_arguments_come_out_as_they_stand(arguments: str, places: list[int]) -> None:
    assert read(cut(arguments, places)) == arguments


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"input": "a\\ud83d', "a"),
        ('{"input": "a\\', "a"),
        ('{"inp', ""),
        ("", ""),
        ('{"input": "a\\ud83d"}', "a\ufffd"),
        ('{"input": "a\\x"}', "a\\x"),
        ('{"input": "a", "more": "b"}', "a"),
    ],
)
def test_arguments_that_end_early_or_are_wrong_lose_nothing_that_was_sure(arguments: str, said: str) -> None:
    for size in range(1, 12):
        assert read([arguments[start : start + size] for start in range(0, len(arguments), size)]) == said


def test_each_character_comes_out_as_soon_as_it_can() -> None:
    reader = StringArgument()
    assert [reader.push(char) for char in '{"input":"a\\n\\u00e4b"'] == [
        *[""] * 10,
        *("a", "", "\n"),
        *[""] * 5,
        *("ä", "b", ""),
    ]
