"""With pipes for the keys and the screen; the whole program at a real terminal: test_command.py."""

from __future__ import annotations

import io
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from rich.console import Console

from service.chat_client.rich_terminal import RichTerminal, history_file
from service.chat_client.terminal import Piece


@contextmanager
def at_keys(keys: str, history: Path | None = None) -> Iterator[tuple[RichTerminal, io.StringIO]]:
    """Somebody has typed these keys."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=40, height=20, color_system="standard")
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        yield RichTerminal(["/help", "/quit"], history, console, pipe, DummyOutput()), screen


def visible(written: str) -> list[str]:
    """What stands on a screen of endless height after this was written to it."""
    lines, row = [""], 0
    for part in re.findall(r"\x1b\[[?\d;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", written):
        if part == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif part.endswith("A") and part.startswith("\x1b"):
            row -= int(part[2:-1])
        elif part == "\x1b[2K":
            lines[row] = ""
        elif part[0] not in "\x1b\r":
            lines[row] += part
    return [line.strip() for line in lines]


def test_enter_sends_and_alt_enter_begins_a_line() -> None:
    with at_keys("one\x1b\rtwo\r") as (terminal, _):
        assert terminal.read() == "one\ntwo"


def test_ctrl_c_and_ctrl_d() -> None:
    with at_keys("half a li\x03\x04") as (terminal, _):
        with pytest.raises(KeyboardInterrupt):
            terminal.read()
        with pytest.raises(EOFError):
            terminal.read()


def test_lines_come_back_in_the_next_session(tmp_path: Path) -> None:
    with at_keys("first\r", tmp_path / "history") as (terminal, _):
        terminal.read()
    with at_keys("\x1b[A\r", tmp_path / "history") as (terminal, _):
        assert terminal.read() == "first"


def test_whole_blocks_are_drawn_as_markdown_and_all_is_shown_once() -> None:
    with at_keys("") as (terminal, screen), terminal.answer() as show:
        for piece in ("# Head", "ing\n\nsome **bo", "ld** text\n\n```python\nx = 1\n\n", "y = 2\n```\nend"):
            show(Piece(piece))
    lines = visible(screen.getvalue())
    assert [line for line in lines if line] == ["Heading", "some bold text", "x = 1", "y = 2", "end"]
    assert "\x1b[1mbold\x1b[0m" in screen.getvalue()


def test_a_long_block_is_shown_once_whatever_the_height() -> None:
    text = " ".join(f"word{number}" for number in range(400))
    with at_keys("") as (terminal, screen), terminal.answer() as show:
        for at in range(0, len(text), 50):
            show(Piece(text[at : at + 50]))
    assert " ".join(visible(screen.getvalue())).split() == text.split()


def test_reasoning_looks_otherwise_and_notes_and_faults_too() -> None:
    with at_keys("") as (terminal, screen):
        with terminal.answer() as show:
            show(Piece("because\n", is_reasoning=True))
            show(Piece("so"))
        terminal.note("noted [bold]as it is[/bold]")
        terminal.fault("broken")
        shown = screen.getvalue()
    assert "\x1b[2;3mbecause" in shown
    assert "\x1b[2mnoted [bold]as it is[/bold]\x1b[0m" in shown
    assert "\x1b[1;31mbroken\x1b[0m" in shown


def test_what_was_shown_of_an_answer_that_is_stopped_stays() -> None:
    with at_keys("") as (terminal, screen), pytest.raises(KeyboardInterrupt), terminal.answer() as show:
        show(Piece("half an ans"))
        raise KeyboardInterrupt
    assert [line for line in visible(screen.getvalue()) if line] == ["half an ans"]


def test_the_history_is_the_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = history_file()
    assert file == tmp_path / "state" / "headrace" / "chat_history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (tmp_path / "state2").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state2"))
    assert history_file() is None
