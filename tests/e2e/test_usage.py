"""What a call is told that it used, over HTTP: prompts counted once, cached tokens as they were when it began."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import OpenAI
from openai.types import CompletionUsage

from tests.e2e.server_process import ServerProcess
from tests.e2e.short_quickstart import short_quickstart
from tests.e2e.strict_client import strict_client

MODEL = "headrace-quickstart"
LONG = "One process batches requests at the iteration level over a paged KV cache. " * 6


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    """Room for some 350 tokens: eight answers of 90 preempt each other."""
    arguments = ("--device", "cpu", "--dtype", "float32", "--max-model-len", "320", "--kv-cache-memory", "704KiB")
    with ServerProcess(*short_quickstart(), *arguments) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    with strict_client(server.url) as client:
        yield client


def usage_of(
    client: OpenAI, prompt: str | list[str], salt: str, *, n: int = 1, stream: bool = False
) -> CompletionUsage:
    body = {"model": MODEL, "messages": [{"role": "user", "content": prompt}], "max_tokens": 3, "n": n}
    if isinstance(prompt, list):
        answer = client.completions.create(
            model=MODEL, prompt=prompt, max_tokens=3, n=n, extra_body={"cache_salt": salt}
        )
        assert answer.usage is not None
        return answer.usage
    if stream:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *_, last = client.chat.completions.create(**body, **options, extra_body={"cache_salt": salt})
        return last.usage
    return client.chat.completions.create(**body, extra_body={"cache_salt": salt}).usage


def cached_of(usage: CompletionUsage) -> int:
    assert usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    return cached


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_was_there_is_cached_up_to_its_last_block(client: OpenAI, stream: bool) -> None:
    salt = f"stream {stream}"
    first, second = (usage_of(client, LONG, salt, stream=stream) for _ in range(2))
    assert cached_of(first) == 0
    assert cached_of(second) == (second.prompt_tokens - 1) // 16 * 16 > 0
    assert cached_of(usage_of(client, LONG, salt + " of another")) == 0, "another salt shares nothing"


def test_several_prompts_are_added_up_and_choices_count_once(client: OpenAI) -> None:
    alone = usage_of(client, [LONG], "several")
    both = usage_of(client, [LONG, LONG], "several", n=2)
    assert both.prompt_tokens == 2 * alone.prompt_tokens
    assert both.completion_tokens <= 4 * 3
    assert both.total_tokens == both.prompt_tokens + both.completion_tokens
    assert cached_of(both) == 2 * ((alone.prompt_tokens - 1) // 16 * 16)


def test_what_a_preempted_request_finds_again_is_not_told_as_cached(server: ServerProcess, client: OpenAI) -> None:
    def ask(index: int) -> CompletionUsage:
        answer = client.completions.create(
            model=MODEL,
            prompt=f"{index} {LONG[:120]}",
            max_tokens=90,
            seed=index,
            extra_body={"ignore_eos": True, "cache_salt": f"own {index}"},
        )
        assert answer.usage is not None
        return answer.usage

    with ThreadPoolExecutor(8) as pool:
        usages = list(pool.map(ask, range(8)))
    preemptions = httpx.get(f"{server.url}/metrics").text.partition('headrace_preemptions_total{kind="recompute"} ')[2]
    assert float(preemptions.splitlines()[0]) > 0
    assert [usage.completion_tokens for usage in usages] == [90] * 8
    assert [cached_of(usage) for usage in usages] == [0] * 8
