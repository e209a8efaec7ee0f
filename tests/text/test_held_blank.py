"""White space is held back until something follows it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.text.held_blank import HeldBlank


@given(st.lists(st.text(alphabet="a \n\t", max_size=4), max_size=10))
def test_all_but_the_last_white_space_comes_out(pieces: list[str]) -> None:
    held, text = HeldBlank(), "".join(pieces)
    assert "".join([held.push(piece) for piece in pieces]) == text.rstrip()
    assert held.take() == text[len(text.rstrip()) :]
    assert held.take() == ""
