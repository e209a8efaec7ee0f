"""Every parameter at once, in a KV cache that is too small for all who run: each answer is the one that the same call
gets alone, streamed or whole, and the metrics agree with what the clients were told."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.e2e.server_process import ServerProcess
from tests.e2e.short_quickstart import short_quickstart
from tests.e2e.test_every_parameter import CHAT, COMPLETIONS, QUESTION, SHARED
from tests.e2e.test_hasty_threads import events, said, whole
from tests.examples import FACTOR
from tests.made_once import made_once

NUM_CLIENTS = 24
Change = dict[str, Any]


def drawn(change: Change) -> Change:
    """A call whose draws hang on all its tokens so far, unless it is a beam search, which draws nothing."""
    hangs = {} if "use_beam_search" in change else {"repetition_penalty": 1.5}
    return {"seed": 1, "temperature": 0.8, "max_tokens": 10, **hangs, **change}


def half(changes: dict[str, Change], which: int) -> list[Change]:
    """Every second: what both endpoints take is asked of one of them, of both with TEST_EXAMPLES=10."""
    return list(changes.values()) if FACTOR > 1 else list(changes.values())[which::2]


OF_CHATS, OF_COMPLETIONS = [*half(SHARED, 0), *CHAT.values()], [*half(SHARED, 1), *COMPLETIONS.values()]
CALLS: list[tuple[str, Change]] = [
    *(("/v1/chat/completions", {"messages": QUESTION, **drawn(change)}) for change in OF_CHATS),
    *(("/v1/completions", {"prompt": "Headrace is", **drawn(change)}) for change in OF_COMPLETIONS),
    ("/v1/completions", {"prompt": "Headrace is", "echo": True, "logprobs": 1, "max_tokens": 0}),
]
FLAGS = (
    "--dtype float32 --device cpu --overlap --scheduling-policy priority --kv-cache-memory 376KiB --watermark 0"
    " --preemption swap --swap-space 84KiB --max-num-seqs 16 --max-num-batched-tokens 40"
).split()
"""Of the short model: its cache has 11 blocks."""


def metrics(server: ServerProcess) -> Counter[str]:
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    return Counter({line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")})


def answers_of_one_process() -> list[Any]:
    """To CALLS, each alone. Asked once by whoever runs tests."""

    def ask() -> list[Any]:
        served = short_quickstart()
        with ServerProcess(*served, *FLAGS) as server, httpx.Client(base_url=server.url, timeout=60) as http:
            return [said(whole(http, *call)["choices"]) for call in CALLS]

    return made_once("answers of one process", ask)


def test_each_answer_is_what_it_is_alone_and_the_metrics_agree():
    chance = random.Random(0)
    alone = answers_of_one_process()

    def ask(number: int, is_stream: bool) -> tuple[str, int]:
        """What the request ended by, and the length of its prompt."""
        path, body = CALLS[number]
        if is_stream:
            news = events(http, path, {**body, "stream_options": {"include_usage": True}})
            choices, usage = [choice for event in news for choice in event["choices"]], news[-1]["usage"]
        else:
            answer = whole(http, path, body)
            choices, usage = answer["choices"], answer["usage"]
        assert said(choices) == alone[number], body
        reasons = {reason for *_, reason in said(choices).values()}
        return "length" if "length" in reasons else "stop", usage["prompt_tokens"]

    with ServerProcess(*short_quickstart(), *FLAGS) as server:
        with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor(NUM_CLIENTS) as pool:
            before = metrics(server)
            numbers = chance.sample(range(len(CALLS)), len(CALLS))
            ended = list(pool.map(ask, numbers, [chance.random() < 0.5 for _ in numbers]))
        for gauge in ("requests_running", "requests_waiting", "requests_swapped", "kv_blocks_used"):
            server.wait_for_gauge(f"headrace_{gauge}", 0)
        news = metrics(server)
        news.subtract(before)
        server.terminate()
        assert server.wait(30) == 0
        assert not [line for line in server.log if "Traceback" in line or "ERROR" in line]
    assert all(news[f'headrace_preemptions_total{{kind="{kind}"}}'] > 0 for kind in ("recompute", "swap"))
    by_reason = Counter(reason for reason, _ in ended)
    for reason in ("stop", "length", "abort", "error"):
        assert news[f'headrace_requests_total{{reason="{reason}"}}'] == by_reason[reason]
    num_prompt_tokens = sum(num_tokens for _, num_tokens in ended)
    assert news["headrace_prompt_tokens_sum"] == num_prompt_tokens
    computed, cached = (news[f'headrace_tokens_total{{kind="{kind}"}}'] for kind in ("prompt", "cached"))
    assert computed + cached == num_prompt_tokens
