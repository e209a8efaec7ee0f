from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.text.marker import Marker


@given(st.lists(st.text(alphabet="ab<", max_size=4)), st.text(alphabet="ab<", min_size=1, max_size=4))
def test_agrees_with_partition_however_the_text_is_cut(pieces: list[str], wanted: str) -> None:
    marker, before, after = Marker(wanted), "", None
    for piece in pieces:
        if after is None:
            shown, after = marker.push(piece)
            before += shown
        else:
            after += piece
    if after is None:
        before += marker.flush()
    text, found, rest = "".join(pieces).partition(wanted)
    assert (before, after) == (text, rest if found else None)


def test_holds_back_only_a_beginning() -> None:
    marker = Marker("<end>")
    assert marker.push("a <") == ("a ", None)
    assert marker.push("b <en") == ("<b ", None)
    assert marker.push("d>c") == ("", "c")
