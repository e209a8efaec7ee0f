"""Do requests that ask for it have the bits that they have alone? `python -m loadtest.determinism URL --requests 10000`

Random completions at once, some of which their clients leave early, then each of those that were answered alone. Ids
and log probabilities are compared as they are in the answers. A server with few KV blocks (`--kv-cache-memory`)
preempts meanwhile. Exits with 1 if one differs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from typing import Any

import httpx

_TIMEOUT_S = 600.0
_LEAVES_EARLY = 0.1
_MOST_PROMPT_TOKENS, _MOST_TOKENS = 200, 24


def random_body(number: int, vocab_size: int) -> dict[str, Any]:
    """Greedy or seeded, with several choices or one; every second begins as others do."""
    chance = random.Random(number)
    shared = random.Random(number % 7)
    beginning = [shared.randrange(3, vocab_size) for _ in range(48)] if number % 2 else []
    rest = [chance.randrange(3, vocab_size) for _ in range(chance.randint(1, _MOST_PROMPT_TOKENS - 48))]
    return {
        "prompt": beginning + rest,
        "max_tokens": chance.randint(1, _MOST_TOKENS),
        "temperature": chance.choice((0.0, 1.0)),
        "seed": number,
        "n": chance.choice((1, 1, 1, 2)),
        "logprobs": 2,
        "ignore_eos": True,
        "return_token_ids": True,
        "deterministic": True,
    }


async def bits(client: httpx.AsyncClient, body: dict[str, Any], timeout_s: float = _TIMEOUT_S) -> str | None:
    """Of all choices; None if the client has left before the answer."""
    try:
        answer = await client.post("/v1/completions", json=body, timeout=timeout_s)
    except httpx.TimeoutException:
        return None
    answer.raise_for_status()
    choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
    return json.dumps([(choice["token_ids"], choice["logprobs"]) for choice in choices])


async def compare(url: str, num_requests: int, at_once: int, vocab_size: int) -> tuple[int, int]:
    """(compared, different)."""
    bodies = [random_body(number, vocab_size) for number in range(num_requests)]
    seats = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=url, limits=limits) as client:

        async def beside_others(number: int) -> str | None:
            chance = random.Random(-1 - number)
            leaves = chance.random() < _LEAVES_EARLY
            async with seats:
                return await bits(client, bodies[number], chance.uniform(0.01, 1.0) if leaves else _TIMEOUT_S)

        together = await asyncio.gather(*map(beside_others, range(num_requests)))
        different = 0
        for body, found in zip(bodies, together, strict=True):
            if found is not None and await bits(client, body) != found:
                different += 1
                print(json.dumps(body))
    return sum(found is not None for found in together), different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--vocab-size", type=int, default=1000, help="prompts are of ids below it")
    options = parser.parse_args()
    compared, different = asyncio.run(compare(options.url, options.requests, options.at_once, options.vocab_size))
    print(json.dumps({"requests": options.requests, "compared": compared, "different": different}))
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
