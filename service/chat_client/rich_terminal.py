"""The terminal of an interactive user: prompt_toolkit reads, rich writes. Both belong to the extra `chat`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from service.chat_client.markdown_blocks import MarkdownBlocks
from service.chat_client.terminal import PROMPT, Piece

_REASONING, _NOTE, _FAULT, _PROMPT = "italic dim", "dim", "bold red", "bold ansigreen"
_LINES_SHOWN = 8
"""Of an incomplete block."""


class RichTerminal:
    """Enter sends; Alt-Enter begins a new line. Earlier lines can be recalled, also those of earlier sessions if
    `history` is a file. Answers are Markdown, printed block by block; the incomplete block is shown as it grows."""

    is_interactive = True

    def __init__(
        self,
        commands: Sequence[str],
        history: Path | None,
        console: Console | None = None,
        keys: Input | None = None,
        screen: Output | None = None,
    ) -> None:
        self._console = console or Console()
        self._prompts: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
            key_bindings=_bindings(),
            multiline=True,
            prompt_continuation="  ",
            input=keys,
            output=screen,
        )

    def read(self, prompt: str = PROMPT) -> str:
        return self._prompts.prompt(FormattedText([(_PROMPT, prompt)]))

    def note(self, text: str) -> None:
        self._console.print(Text(text, style=_NOTE))

    def fault(self, text: str) -> None:
        self._console.print(Text(text, style=_FAULT))

    @contextmanager
    def answer(self) -> Iterator[Callable[[Piece], None]]:
        with Live(console=self._console, refresh_per_second=12, transient=True) as live:
            view = _AnswerView(live)
            try:
                yield view.add
            finally:
                view.end()


class _AnswerView:
    """Prints complete blocks above the incomplete one, which `live` shows meanwhile."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._blocks = MarkdownBlocks()
        self._is_reasoning = False

    def add(self, piece: Piece) -> None:
        if piece.is_reasoning != self._is_reasoning:
            self.end()
            self._is_reasoning = piece.is_reasoning
        for block in self._blocks.push(piece.text):
            self._print(block)
        self._live.update(Text(self._last_lines(), style=_REASONING if self._is_reasoning else ""))

    def end(self) -> None:
        """The rest is complete."""
        if (rest := self._blocks.flush()).strip():
            self._print(rest)
        self._live.update(Text(""))

    def _print(self, block: str) -> None:
        self._live.update(Text(""))  # else it would be shown again below the block
        if self._is_reasoning:
            self._live.console.print(Text(block.rstrip("\n"), style=_REASONING))
        else:
            self._live.console.print(Markdown(block))

    def _last_lines(self) -> str:
        """As many lines as fit below what is printed, whatever the height of the screen."""
        console = self._live.console
        width = max(1, console.width)
        unended = self._blocks.rest.rstrip("\n").split("\n")
        lines = [line[at : at + width] for line in unended for at in range(0, len(line) or 1, width)]
        return "\n".join(lines[-min(_LINES_SHOWN, max(1, console.height - 2)) :])


def history_file() -> Path | None:
    """The file of earlier lines, in the user's state folder; None if it cannot be written."""
    try:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        folder = Path(state) / "headrace"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = folder / "chat_history"
        file.touch(mode=0o600)
    except (OSError, RuntimeError):  # there is no home directory
        return None
    return file


def _history(file: Path | None) -> History:
    return InMemoryHistory() if file is None else FileHistory(str(file))


def _bindings() -> KeyBindings:
    """With several lines, Enter would begin another one."""
    bindings = KeyBindings()

    @bindings.add("enter")
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings
