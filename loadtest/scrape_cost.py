"""Cost of a scrape of /metrics to the event loop under load: CPU ms of its thread, and elapsed ms.

    python -m loadtest.scrape_cost [--streams 24] [--scrapes 100] [-- flags of `headrace serve`]

Starts a server, keeps streams running on it, and scrapes it every 0.2 s. Both times are taken in the server, from the
call of the app to its return. CPU time does not grow when the machine is busy; it is also the longest that a scrape can
keep the interpreter from the engine's thread. Elapsed time adds the wait for the interpreter and for a core. The first
scrapes, which name each series, count too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from starlette.types import ASGIApp, Receive, Scope, Send

from loadtest.direct_http import opened
from loadtest.server_process import free_port, running_server
from service.api.app import create_app
from service.main import serve
from service.settings.reader import read_settings

_PAUSE_S = 0.2
_TIMEOUT_S = 120.0


class TimedScrapes:
    """An ASGI app around the service's. Appends a line of JSON to the file per scrape: [CPU ms, elapsed ms]."""

    def __init__(self, app: ASGIApp, file: Path) -> None:
        self._app = app
        self._file = file.open("a", buffering=1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != "/metrics":
            await self._app(scope, receive, send)
            return
        began_s, began_on_core_s = time.perf_counter(), time.thread_time()
        await self._app(scope, receive, send)
        on_core_s, passed_s = time.thread_time() - began_on_core_s, time.perf_counter() - began_s
        print(json.dumps([1e3 * on_core_s, 1e3 * passed_s]), file=self._file)


def serve_timed(file: Path, flags: list[str]) -> int:
    """Run the service with timed scrapes."""

    def create_timed(*args: Any, **named: Any) -> ASGIApp:
        return TimedScrapes(create_app(*args, **named), file)

    with patch("service.main.create_app", create_timed):
        return serve(read_settings(flags))


def _stream_on(url: str, over: threading.Event) -> None:
    model = json.load(opened(f"{url}/v1/models", _TIMEOUT_S))["data"][0]["id"]
    body = {"model": model, "prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "stream": True}
    call = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    while not over.is_set():
        with opened(call, _TIMEOUT_S) as answer:
            while answer.read1(65536):
                pass


def _measure(num_streams: int, num_scrapes: int, flags: Sequence[str]) -> tuple[list[list[float]], int]:
    """CPU and elapsed milliseconds of each scrape, and the bytes of the last one."""
    url, over = f"http://127.0.0.1:{(port := free_port())}", threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scrapes"
        command = [sys.executable, "-m", "loadtest.scrape_cost", "--server", str(file), "--", "--port", str(port)]
        with running_server([*command, *flags], f"{url}/ready"):
            clients = [threading.Thread(target=_stream_on, args=(url, over)) for _ in range(num_streams)]
            for client in clients:
                client.start()
            for _ in range(num_scrapes):
                time.sleep(_PAUSE_S)
                num_bytes = len(opened(f"{url}/metrics", _TIMEOUT_S).read())
            over.set()
            for client in clients:
                client.join()
        return [json.loads(line) for line in file.read_text().splitlines()], num_bytes


def _told(name: str, milliseconds: Sequence[float]) -> str:
    *_, late = statistics.quantiles(milliseconds, n=20)
    within = sum(each <= 5 for each in milliseconds) / len(milliseconds)
    return (
        f"{name:12} mean {statistics.fmean(milliseconds):5.2f} ms, median {statistics.median(milliseconds):5.2f},"
        f" 95th percentile {late:5.2f}, most {max(milliseconds):5.2f}; at most 5 ms: {within:.0%}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=24)
    parser.add_argument("--scrapes", type=int, default=100)
    parser.add_argument("--server", type=Path, help=argparse.SUPPRESS)  # the measuring script starts this one
    parser.add_argument("flags", nargs="*", help="options for `headrace serve`; default: the quickstart model")
    args = parser.parse_args()
    if args.server is not None:
        return serve_timed(args.server, args.flags)
    scrapes, num_bytes = _measure(args.streams, args.scrapes, args.flags)
    print(f"{len(scrapes)} scrapes beside {args.streams} streams, {num_bytes / 1000:.0f} kB each")
    print(_told("on the core", [on_core for on_core, _ in scrapes]))
    print(_told("passed", [passed for _, passed in scrapes]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
