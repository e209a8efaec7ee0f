from __future__ import annotations

import pytest

from service.chat_client.terminal import Piece, PlainTerminal


def terminal(written: list[str], *, is_interactive: bool = False) -> PlainTerminal:
    return PlainTerminal(lambda prompt: prompt, written.append, is_interactive=is_interactive)


def test_where_nobody_types_there_is_no_prompt():
    assert terminal([]).read() == ""
    assert terminal([], is_interactive=True).read() == "> "


def test_pieces_are_written_as_they_come_and_the_line_is_ended():
    written: list[str] = []
    with terminal(written).answer() as show:
        show(Piece("a"))
        assert written == ["a"]
        show(Piece("b"))
    assert "".join(written) == "ab\n"


def test_nothing_is_written_of_an_answer_that_never_came():
    written: list[str] = []
    with pytest.raises(KeyboardInterrupt), terminal(written).answer():
        raise KeyboardInterrupt
    assert written == []


def test_notes_and_faults_are_lines():
    written: list[str] = []
    terminal(written).note("a\nb")
    terminal(written).fault("c")
    assert "".join(written) == "a\nb\n[failed: c]\n"
