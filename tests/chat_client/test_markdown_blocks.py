from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.chat_client.markdown_blocks import MarkdownBlocks

TEXTS = st.text(alphabet="ab `~\n#", max_size=60)


def cut(pieces: list[str]) -> list[str]:
    blocks = MarkdownBlocks()
    return [block for piece in pieces for block in blocks.push(piece)] + ([rest] if (rest := blocks.flush()) else [])


def test_a_block_ends_at_a_blank_line_or_with_its_fence():
    assert cut(["# Title\n\none\ntwo\n", "\n", "three"]) == ["# Title\n\n", "one\ntwo\n\n", "three"]
    code = "```python\na\n\nb\n```\n"
    assert cut([f"see\n\n{code}then"]) == ["see\n\n", code, "then"]


def test_a_fence_ends_with_its_own_mark_only():
    code = "````\n```\n\n~~~\n````\n"
    assert cut([code, "a\n\n", "b"]) == [code, "a\n\n", "b"]


@given(TEXTS, st.integers(1, 7))
def test_nothing_is_lost_and_pieces_do_not_matter(text: str, size: int):
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert cut(pieces) == cut([text])
    assert "".join(cut([text])).split() == text.split()


@pytest.mark.parametrize("text", ["", "\n\n\n", "   \n\n"])
def test_blank_lines_alone_are_no_block(text: str):
    assert MarkdownBlocks().push(text) == []
