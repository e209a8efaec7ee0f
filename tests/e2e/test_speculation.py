"""Speculation as openai-python sees it: streams of text that copies, with drafts and without, are the same."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from openai import OpenAI

from service.scheduler.speculation import Speculation
from tests.api.running_server import MODEL, RunningServer, Scene, running

COPIES = "one two three four, " * 6
ASKED: list[dict[str, Any]] = [
    {},
    {"max_tokens": 41},
    {"stop": ["three four, one two three four, one two th"]},
    {"logprobs": True, "top_logprobs": 2},
    {"n": 2, "max_tokens": 30},
    {"response_format": {"type": "json_object"}, "max_tokens": 30},
]
_WITHIN_S = 20
_DELAY_S = 0.002
"""Of an iteration, however many rows it has: then drafts pay."""


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[RunningServer, RunningServer]]:
    with running() as plain, running(Scene(speculation=Speculation(4, 64))) as drafting:
        for server in (plain, drafting):
            server.say(COPIES)
            server.executor.delay_s = _DELAY_S
        yield plain, drafting


def streamed(server: RunningServer, asked: dict[str, Any]) -> list[object]:
    """Of each choice its text, its logprobs and why it ended; and the usage."""
    messages: Any = [{"role": "user", "content": "Repeat: " + COPIES}]
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 150} | asked
    texts, logprobs, ends, usage = dict[int, str](), dict[int, list[object]](), dict[int, object](), None
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="none", timeout=_WITHIN_S, max_retries=0) as client:
        for chunk in client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **options):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
                entries = [] if choice.logprobs is None else choice.logprobs.content or []
                logprobs.setdefault(choice.index, []).extend((each.token, each.logprob) for each in entries)
                ends[choice.index] = choice.finish_reason
    assert usage is not None
    return [texts, logprobs, ends, usage.prompt_tokens, usage.completion_tokens]


def num_drafts(server: RunningServer, which: str) -> float:
    lines = httpx.get(f"{server.base_url}/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f"headrace_{which}_tokens_total"))


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_a_stream_is_the_same_with_drafts_and_without(servers: tuple[RunningServer, RunningServer], asked):
    plain, drafting = servers
    assert streamed(drafting, asked) == streamed(plain, asked)


def test_so_are_streams_beside_each_other_and_most_drafts_were_right(servers: tuple[RunningServer, RunningServer]):
    plain, drafting = servers
    before = [num_drafts(drafting, which) for which in ("draft", "accepted_draft")]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: streamed(drafting, {}), range(4)))
    assert answers == [streamed(plain, {})] * 4
    drafted, accepted = (num_drafts(drafting, which) for which in ("draft", "accepted_draft"))
    assert 0.5 * (drafted - before[0]) < accepted - before[1]
    assert num_drafts(plain, "draft") == 0


def test_who_hangs_up_amid_drafts_holds_nothing(servers: tuple[RunningServer, RunningServer]):
    drafting = servers[1]
    asked = {"model": MODEL, "messages": [{"role": "user", "content": COPIES}], "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{drafting.base_url}/v1/chat/completions", json=asked) as response:
        for _, line in zip(range(20), response.iter_lines(), strict=False):
            assert "error" not in line
    drafting.check_idle()
