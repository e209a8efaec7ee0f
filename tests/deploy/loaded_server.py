"""A real service that has seen everything that its metrics tell of: preemptions, refusals, clients that left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.e2e.server_process import ServerProcess, write_dummy_folder

MODEL = "dummy"
AT_ONCE = 24
PROMPTS_A_CALL = 6
TRIES = 10


@contextmanager
def loaded_server(folder: Path) -> Iterator[ServerProcess]:
    """Swapping, with room for a few of the requests at once, and for a few that wait."""
    flags = "--load-format dummy --device cpu --dtype float32 --max-model-len 256 --kv-cache-memory 256KiB"
    flags += f" --preemption swap --max-waiting-requests 8 --served-model-name {MODEL}"
    with ServerProcess(str(write_dummy_folder(folder)), *flags.split()) as server:
        statuses = make_load(server.url)
        assert statuses >= {200, 400, 503}
        yield server


def make_load(url: str) -> set[int]:
    """More at once than may wait, a prefix twice, a client that leaves, one that is wrong. Returns the statuses."""
    calls = [[f"{call} {i} once upon a time" for i in range(PROMPTS_A_CALL)] for call in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        statuses = {*threads.map(lambda prompts: _complete(url, prompts, 100), calls)}
    for _ in range(2):
        statuses.add(_complete(url, "the same beginning of a prompt, long enough for a block", 4))
    statuses.add(_complete(url, "x", -1))
    leave_early(url)
    return statuses


def leave_early(url: str) -> None:
    """Until the service has seen a client leave: a short answer may have ended before."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": 200, "ignore_eos": True, "stream": True}
    for _ in range(TRIES):
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
            next(response.iter_bytes())
        for _ in range(TRIES):
            if "headrace_aborts_total{" in httpx.get(f"{url}/metrics", timeout=60).text:
                return
            time.sleep(0.1)
    raise AssertionError("no client was seen to leave")


def _complete(url: str, prompt: str | list[str], max_tokens: int) -> int:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    return httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code
