"""Do deterministic requests give the same bits in a batch as alone?

    `python -m loadtest.determinism URL --requests 10000`

Sends random completions concurrently, some of which their clients abort, then resends those that were answered, one
after another. Token ids and log probabilities of the two answers must be equal. A server with few KV blocks
(`--kv-cache-memory`) preempts meanwhile. `--seconds` limits both halves together: what was not resent by then is not
compared, and the last line says how many were. Exits with 1 if any answer differs, or if none was compared.

Resending one after another takes most of the time. With `--servers N [--server-args FLAG ...]` instead of URL, N
servers on this machine share the requests, each with a client of its own: on one GPU they compute side by side. They
serve the quickstart model, unless the flags name another.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, astuple, dataclass
from functools import partial
from typing import Any

import httpx

from loadtest.headrace_server import headrace_server
from loadtest.server_metrics import read_metrics

_TIMEOUT_S = 600.0
_LEAVES_EARLY = 0.1
_SHARED_TOKENS = 48
_LATEST_LEAVE_S = 1.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of random requests. vocab_size: prompt ids are below it. most_prompt_tokens: more than _SHARED_TOKENS."""

    vocab_size: int = 1000
    most_prompt_tokens: int = 200
    most_tokens: int = 24


@dataclass(frozen=True, slots=True)
class Comparison:
    """Numbers of requests. left: aborted by their clients. compared: answered and sent again alone. preemptions: as
    the servers count them, meanwhile."""

    asked: int
    left: int
    compared: int
    different: int
    preemptions: int


def random_body(number: int, sizes: Sizes) -> dict[str, Any]:
    """Request `number`: greedy or sampled, one choice or two. Every second request shares a prefix with others."""
    chance = random.Random(number)
    shared = random.Random(number % 7)
    beginning = [shared.randrange(3, sizes.vocab_size) for _ in range(_SHARED_TOKENS)] if number % 2 else []
    num_own = chance.randint(1, sizes.most_prompt_tokens - _SHARED_TOKENS)
    rest = [chance.randrange(3, sizes.vocab_size) for _ in range(num_own)]
    return {
        "prompt": beginning + rest,
        "max_tokens": chance.randint(1, sizes.most_tokens),
        "temperature": chance.choice((0.0, 1.0)),
        "seed": number,
        "n": chance.choice((1, 1, 1, 2)),
        "logprobs": 2,
        "ignore_eos": True,
        "return_token_ids": True,
        "deterministic": True,
    }


async def bits(client: httpx.AsyncClient, body: dict[str, Any], timeout_s: float = _TIMEOUT_S) -> str | None:
    """Token ids and log probabilities of all choices, as JSON; None if the client left before the answer."""
    try:
        answer = await client.post("/v1/completions", json=body, timeout=timeout_s)
    except httpx.TimeoutException:
        return None
    answer.raise_for_status()
    choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
    return json.dumps([(choice["token_ids"], choice["logprobs"]) for choice in choices])


async def compare(
    url: str, requests: Iterable[int], at_once: int, sizes: Sizes, seconds: float = float("inf")
) -> Comparison:
    """requests: their numbers. seconds: one half for the concurrent requests, the other for those alone. Prints every
    request whose answers differ."""
    begin_s, before = time.monotonic(), _num_preemptions(url)
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=url, limits=limits) as client:
        numbers = iter(requests)
        together: dict[int, str | None] = {}

        async def ask_beside_others() -> None:
            for number in numbers:
                if time.monotonic() - begin_s > seconds / 2:
                    return
                chance = random.Random(-1 - number)
                leaves = chance.random() < _LEAVES_EARLY
                timeout_s = chance.uniform(0.01, _LATEST_LEAVE_S) if leaves else _TIMEOUT_S
                together[number] = await bits(client, random_body(number, sizes), timeout_s)

        await asyncio.gather(*(ask_beside_others() for _ in range(at_once)))
        answered = [(number, found) for number, found in sorted(together.items()) if found is not None]
        compared = different = 0
        for number, found in answered:
            if time.monotonic() - begin_s > seconds:
                break
            compared += 1
            if await bits(client, random_body(number, sizes)) != found:
                different += 1
                print(json.dumps(random_body(number, sizes)))
    left = len(together) - len(answered)
    return Comparison(len(together), left, compared, different, _num_preemptions(url) - before)


def compare_on_servers(
    num_servers: int, flags: Sequence[str], requests: range, at_once: int, sizes: Sizes, seconds: float = float("inf")
) -> Comparison:
    """The sum over `num_servers` servers, started with these flags. at_once and seconds are per server."""
    if num_servers > 1:
        with tempfile.TemporaryFile() as log, headrace_server(flags, log):
            pass  # compiles all kernels once, so that the others find them in the cache
    shares = [requests[first::num_servers] for first in range(num_servers)]
    compare_share = partial(_compare_on_own_server, flags=flags, at_once=at_once, sizes=sizes, seconds=seconds)
    with ProcessPoolExecutor(num_servers, multiprocessing.get_context("spawn")) as clients:
        comparisons = list(clients.map(compare_share, shares))
    return Comparison(*map(sum, zip(*map(astuple, comparisons), strict=True)))


def _compare_on_own_server(
    requests: range, flags: Sequence[str], at_once: int, sizes: Sizes, seconds: float
) -> Comparison:
    with tempfile.TemporaryFile() as log, headrace_server(flags, log) as server:
        return asyncio.run(compare(f"http://127.0.0.1:{server.port}", requests, at_once, sizes, seconds))


def _num_preemptions(url: str) -> int:
    found = read_metrics(url)
    return int(sum(value for name, value in found.items() if name.startswith("headrace_preemptions_total")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--servers", type=int, default=0, metavar="N", help="start N servers, instead of a URL")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first request; default: 0")
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=1000, help="prompt ids are below this; default: 1000")
    parser.add_argument("--most-prompt-tokens", type=int, default=200, help=f"more than {_SHARED_TOKENS}")
    parser.add_argument("--most-tokens", type=int, default=24)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--server-args", nargs=argparse.REMAINDER, default=[], help="options for the servers, last")
    options = parser.parse_args()
    if (options.url is None) is not (options.servers > 0):
        parser.error("give either a URL or --servers")
    sizes = Sizes(options.vocab_size, options.most_prompt_tokens, options.most_tokens)
    requests = range(options.first, options.first + options.requests)
    how = options.at_once, sizes, options.seconds
    if options.servers:
        found = compare_on_servers(options.servers, options.server_args, requests, *how)
    else:
        found = asyncio.run(compare(options.url, requests, *how))
    print(json.dumps(asdict(found)))
    sys.exit(0 if found.compared and not found.different else 1)


if __name__ == "__main__":
    main()
