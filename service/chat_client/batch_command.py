"""`headrace batch FILE`: turns a file of requests into a file of answers, with a running server or one of its own."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from service.chat_client.batch_file import BatchFileError, batch_lines, endpoint_of
from service.chat_client.batch_watch import watch_batch
from service.chat_client.own_server import own_server
from service.chat_client.progress_bar import ProgressBar
from service.chat_client.server import BatchState, Server, ServerFault

_WINDOW = "7d"
_INTERRUPTED = 130
_RETRY_S = 5.0


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status: 0 if every request was answered with status 200; 130 if Ctrl-C came where there was no
    batch to cancel."""
    own, behind = _split(arguments)
    options = _parser().parse_args(own)
    if options.url is not None and behind:
        print("headrace batch: what follows -- is for a server of its own, without --url", file=sys.stderr)
        return 2
    try:
        endpoint = endpoint_of(options.file)
        place = own_server(options.model, behind) if options.url is None else nullcontext(options.url)
        with _part_of(options.out) as part, place as url:
            server = Server(url, os.environ.get("OPENAI_API_KEY") if options.url else None)
            names = server.model_names()
            model = options.model if options.url and options.model else names[0]
            batch = _run(server, server.upload(batch_lines(options.file, model)), endpoint)
            if batch.file_ids:
                _write(server, batch, part, options.out, retries=options.url is None)
            return _tell(batch, options.out)
    except (ServerFault, BatchFileError, OSError) as fault:
        print(f"headrace batch: {fault}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("headrace batch: interrupted", file=sys.stderr)
        return _INTERRUPTED


def _tell(batch: BatchState, out: Path) -> int:
    """Returns the exit status."""
    for line in batch.errors:
        print(f"headrace batch: {line}", file=sys.stderr)
    counts = f"{batch.num_completed} answers and {batch.num_failed} errors of {batch.num_lines} requests"
    print(f"{batch.status}: {counts}{f' are in {out}' if batch.file_ids else ''}", file=sys.stderr)
    return 0 if batch.status == "completed" and batch.num_completed == batch.num_lines else 1


def _split(arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    if "--" not in arguments:
        return arguments, ()
    at = list(arguments).index("--")
    return arguments[:at], arguments[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="headrace batch",
        description="Answer a file of requests: lines in the format of OpenAI's Batch API, or bare requests with"
        " messages or a prompt. Without --url, the model is loaded for it. The output has a line for each answer or"
        " error, in the same format, in the order in which they end. Ctrl-C stops; answers so far are kept.",
        usage="%(prog)s FILE --out FILE [--model MODEL] [--url URL | -- OPTIONS OF headrace serve]",
    )
    parser.add_argument("file", type=Path, help="the requests, as JSONL")
    parser.add_argument("--out", type=Path, required=True, help="output file; overwritten if it exists")
    parser.add_argument(
        "--model", help="folder or Hugging Face id to load; with --url, the model of requests that name none"
    )
    parser.add_argument("--url", help="address of a running server; the key in OPENAI_API_KEY is sent")
    return parser


def _run(server: Server, file_id: str, endpoint: str) -> BatchState:
    """The batch when it has ended. Ctrl-C cancels it, however often it comes."""
    batch = server.create_batch(file_id, endpoint, _WINDOW)
    bar, is_wanted = ProgressBar(sys.stderr, "requests"), True
    try:
        while not batch.is_over:
            try:
                if not is_wanted:
                    batch = _cancelled(server, batch.batch_id)
                for told in watch_batch(server, batch.batch_id, lines=False):
                    if isinstance(told, BatchState):
                        batch = told
                        _show(bar, batch)
            except KeyboardInterrupt:
                is_wanted = False
    finally:
        bar.end()
    return batch


def _cancelled(server: Server, batch_id: str) -> BatchState:
    """A batch that has just ended cannot be cancelled, and has its answers."""
    try:
        return server.cancel_batch(batch_id)
    except ServerFault:
        batch = server.batch(batch_id)
        if not batch.is_over:
            raise
        return batch


def _show(bar: ProgressBar, batch: BatchState) -> None:
    if batch.num_lines:
        bar.show(batch.num_completed + batch.num_failed, batch.num_failed, batch.num_lines)


@contextmanager
def _part_of(out: Path) -> Iterator[Path]:
    """A file beside the output, to be renamed to it, so that readers find it whole. It is made before anything is
    computed: OSError if the output cannot be written."""
    if out.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(out))
    part = out.with_name(out.name + ".part")
    part.touch()
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _write(server: Server, batch: BatchState, part: Path, out: Path, *, retries: bool) -> None:
    """retries: until it succeeds, since the answers are lost with the server."""
    while True:
        try:
            with part.open("wb") as file:
                for file_id in batch.file_ids:
                    for piece in server.file_content(file_id):
                        file.write(piece)
            part.replace(out)
            return
        except OSError as fault:
            if not retries:
                raise
            print(f"headrace batch: the answers cannot be written yet: {fault}", file=sys.stderr)
            time.sleep(_RETRY_S)
