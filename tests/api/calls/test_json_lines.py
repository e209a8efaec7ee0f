from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.calls.json_lines import JsonLines
from service.errors import InvalidRequest

MOST = 200


def outcome(pieces: Sequence[bytes]) -> str:
    lines = JsonLines(MOST)
    try:
        for piece in pieces:
            lines.feed(piece)
        lines.finish()
    except InvalidRequest as error:
        assert (error.param, error.code) in {("file", "invalid_jsonl"), ("file", None)}
        return error.message
    return ""


@given(
    st.lists(
        st.sampled_from([b'{"a": 1}', b"{}\r", b"", b" ", b"[1]", b"{", b'{"a": "%b"}' % (b"x" * MOST)]), max_size=6
    ),
    st.lists(st.integers(0, 1500), max_size=8),
)
def test_however_it_is_cut_the_first_wrong_line_is_named(lines: list[bytes], cuts: list[int]) -> None:
    content = b"\n".join(lines)
    wrong = [number for number, line in enumerate(lines, 1) if line in (b"[1]", b"{") or len(line) > MOST]
    places = [0, *sorted(at for at in cuts if at < len(content)), len(content)]
    message = outcome([content[start:end] for start, end in itertools.pairwise(places)])
    assert message == outcome([content])
    if wrong:
        assert message.startswith(f"Line {wrong[0]} ")
    elif not any(line.strip() for line in lines):
        assert message == "The file holds no line of JSON."
    else:
        assert message == ""


def test_a_line_of_too_many_values_is_refused_by_its_number() -> None:
    lines = JsonLines(10_000_000)
    lines.feed(b"{}\n")
    with pytest.raises(InvalidRequest, match="Line 2 holds too many values"):
        lines.feed(b'{"a": [' + b"[1]," * 200_000 + b"1]}\n")
