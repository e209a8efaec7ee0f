"""Any of many texts: as a regex of alternatives finds them, the longest first."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text import any_of
from service.text.any_of import AnyOf

WORDS = st.text(alphabet="ab<|.", max_size=4)


@given(st.lists(WORDS, max_size=6), st.text(alphabet="ab<|.", max_size=40), st.integers(1, 9))
def test_finds_what_alternatives_find_wherever_it_is_cut(texts: list[str], text: str, piece: int) -> None:
    longest_first = sorted(filter(None, texts), key=len, reverse=True)
    alternatives = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(any_of, "_PIECE", piece)
        found = AnyOf(texts).replace(text, lambda each: f"[{each}]")
    assert found == alternatives.sub(lambda match: f"[{match[0]}]", text)


def test_the_longest_wins() -> None:
    assert AnyOf(["<s", "<s>", "<s>x"]).replace("<s> <s <s>x", lambda each: str(len(each))) == "3 2 4"


def test_without_texts_nothing_is_found() -> None:
    assert AnyOf([""]).replace("anything", lambda each: "") == "anything"
