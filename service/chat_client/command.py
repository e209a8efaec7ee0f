"""The command line of `headrace chat`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from service.chat_client.server import Server, ServerFault
from service.chat_client.session import COMMANDS, HELP, Session
from service.chat_client.terminal import PlainTerminal, Terminal


def main(arguments: Sequence[str]) -> int:
    """Chat until the user leaves. Returns the exit status: 1 if there is no such server or model, or if input came from
    a pipe and an answer has failed."""
    options = _parser().parse_args(arguments)
    try:
        server = Server(options.url, os.environ.get("OPENAI_API_KEY"))
        names = server.model_names()
        model = options.model or names[0]
        if model not in names:
            raise ServerFault(f"there is no model {model!r}; there are: {', '.join(names)}")
    except ServerFault as fault:
        print(f"headrace chat: {fault}", file=sys.stderr)
        return 1
    terminal = _terminal(plain=options.plain)
    if terminal.is_interactive:
        terminal.note(f"{model} at {options.url}\n{HELP}")
    num_failed = Session(server, terminal, model, {"max_tokens": options.max_tokens}).run()
    return 1 if num_failed and not terminal.is_interactive else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace chat",
        description="Chat with a running OpenAI-compatible server, and run batches of prompts in the background.",
        epilog="The key in OPENAI_API_KEY is sent. Lines from a pipe are answered one after the other.",
    )
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="address of the server (%(default)s)")
    parser.add_argument("--model", help="name of a model; the server's first if not set")
    parser.add_argument(
        "--max-tokens", type=int, default=512, help="maximum tokens of an answer in the chat (%(default)s)"
    )
    parser.add_argument("--plain", action="store_true", help="no colors, no Markdown")
    return parser


def _terminal(*, plain: bool) -> Terminal:
    """With colours and key bindings on a terminal, if the extra `chat` is installed."""
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if not is_interactive:
        return PlainTerminal(_read_piped, _write, is_interactive=False)
    if not plain and os.environ.get("TERM", "dumb") != "dumb":
        with contextlib.suppress(ImportError):
            from service.chat_client.rich_terminal import RichTerminal, history_file

            return RichTerminal([*COMMANDS, "/quit"], history_file())
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401 - the line can be edited, and earlier ones come back
    return PlainTerminal(input, _write, is_interactive=True)


def _read_piped(_: str) -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def _write(text: str) -> None:
    print(text, end="", flush=True)
