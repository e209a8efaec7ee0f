"""A real service that has seen everything that its metrics tell of: preemptions, refusals, clients that left."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.e2e.server_process import ServerProcess, write_dummy_folder

MODEL = "dummy"
AT_ONCE = 24


@contextmanager
def loaded_server(folder: Path) -> Iterator[ServerProcess]:
    """Swapping, with room for a few of the requests at once, and for a few that wait."""
    flags = "--load-format dummy --device cpu --dtype float32 --max-model-len 256 --kv-cache-memory 256KiB"
    flags += f" --preemption swap --max-waiting-requests 8 --served-model-name {MODEL}"
    with ServerProcess(str(write_dummy_folder(folder)), *flags.split()) as server:
        make_load(server.url)
        yield server


def make_load(url: str) -> None:
    """More at once than may wait, a prefix twice, a client that leaves, one that is wrong."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        statuses = [*threads.map(lambda i: _complete(url, f"{i} once upon a time", 100), range(AT_ONCE))]
    assert statuses.count(200) >= 2
    assert statuses.count(503) >= 1
    for _ in range(2):
        assert _complete(url, "the same beginning of a prompt, long enough for a block", 4) == 200
    assert _complete(url, "x", -1) == 400
    body = {"model": MODEL, "prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
        next(response.iter_bytes())


def _complete(url: str, prompt: str, max_tokens: int) -> int:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code
