"""`headrace batch FILE`: a file of requests becomes a file of answers, by a running server or by one of our own."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from service.chat_client.batch_file import BatchFileError, batch_lines, endpoint_of
from service.chat_client.batch_watch import watch_batch
from service.chat_client.own_server import own_server
from service.chat_client.progress_bar import ProgressBar
from service.chat_client.server import BatchState, Server, ServerFault

_WINDOW = "7d"


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 if every request has an answer of status 200."""
    own, behind = _split(arguments)
    options = _parser().parse_args(own)
    if options.url is not None and behind:
        print("headrace batch: what follows -- is for a server of its own, without --url", file=sys.stderr)
        return 2
    try:
        endpoint = endpoint_of(options.file)
        place = own_server(options.model, behind) if options.url is None else nullcontext(options.url)
        with place as url:
            server = Server(url, os.environ.get("OPENAI_API_KEY") if options.url else None)
            names = server.model_names()
            model = options.model if options.url and options.model else names[0]
            batch = _run(server, server.upload(batch_lines(options.file, model)), endpoint)
            if batch.file_ids:
                _write(server, batch, options.out)
    except (ServerFault, BatchFileError, OSError) as fault:
        print(f"headrace batch: {fault}", file=sys.stderr)
        return 1
    for line in batch.errors:
        print(f"headrace batch: {line}", file=sys.stderr)
    counts = f"{batch.num_completed} answers and {batch.num_failed} errors of {batch.num_lines} requests"
    print(f"{batch.status}: {counts}{f' are in {options.out}' if batch.file_ids else ''}", file=sys.stderr)
    return 0 if batch.status == "completed" and batch.num_completed == batch.num_lines else 1


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if "--" not in arguments:
        return arguments, ()
    at = list(arguments).index("--")
    return arguments[:at], arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace batch",
        description="Answer a file of requests: lines as OpenAI's Batch API has them, or bare ones with messages or a"
        " prompt. Without --url the model is loaded for it. Answers and errors are lines of the output, as that API"
        " has them, in the order in which they end. Ctrl-C ends it, and what is answered by then is kept.",
        usage="%(prog)s FILE --out FILE [--model MODEL] [--url URL | -- OPTIONS OF headrace serve]",
    )
    parser.add_argument("file", type=Path, help="JSONL")
    parser.add_argument("--out", type=Path, required=True, help="where the answers go; replaced if it is there")
    parser.add_argument(
        "--model", help="to be loaded, a folder or hub id; with --url, what requests that name none are for"
    )
    parser.add_argument("--url", help="address of a running server; a key in OPENAI_API_KEY is sent")
    return parser


def _run(server: Server, file_id: str, endpoint: str) -> BatchState:
    """The batch at its end."""
    batch = server.create_batch(file_id, endpoint, _WINDOW)
    bar = ProgressBar(sys.stderr, "requests")
    try:
        while not batch.is_over:
            try:
                for told in watch_batch(server, batch.batch_id, lines=False):
                    if isinstance(told, BatchState):
                        batch = told
                        _show(bar, batch)
            except KeyboardInterrupt:
                batch = server.cancel_batch(batch.batch_id)
    finally:
        bar.end()
    return batch


def _show(bar: ProgressBar, batch: BatchState) -> None:
    if batch.num_lines:
        bar.show(batch.num_completed + batch.num_failed, batch.num_failed, batch.num_lines)


def _write(server: Server, batch: BatchState, out: Path) -> None:
    """All at once: whoever reads the file finds it whole."""
    part = out.with_name(out.name + ".part")
    try:
        with part.open("wb") as file:
            for file_id in batch.file_ids:
                for piece in server.file_content(file_id):
                    file.write(piece)
        part.replace(out)
    finally:
        part.unlink(missing_ok=True)
