"""The command line of `headrace chat`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence

from service.chat_client.server import Server, ServerFault
from service.chat_client.session import HELP, Session


def main(arguments: Sequence[str]) -> int:
    """Chat until the user leaves; returns the exit status: 1 if there is no such server or model."""
    parser = argparse.ArgumentParser(
        prog="headrace chat",
        description="Chat with a running OpenAI-compatible server; batches of prompts run behind the chat.",
        epilog="A key in OPENAI_API_KEY is sent.",
    )
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8000", help="address of the server (%(default)s)")
    parser.add_argument("--model", help="name of a model; the server's first if left out")
    parser.add_argument(
        "--max-tokens", type=int, default=512, help="tokens that an answer in the chat may have (%(default)s)"
    )
    options = parser.parse_args(arguments)
    try:
        server = Server(options.url, os.environ.get("OPENAI_API_KEY"))
        names = server.model_names()
        model = options.model or names[0]
        if model not in names:
            raise ServerFault(f"there is no model {model!r}; there are: {', '.join(names)}")
    except ServerFault as fault:
        print(f"headrace chat: {fault}", file=sys.stderr)
        return 1
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - the line can be edited, and earlier ones come back
        print(f"{model} at {options.url}\n{HELP}")
    Session(server, model, input, _write, options.max_tokens).run()
    return 0


def _write(text: str) -> None:
    print(text, end="", flush=True)
