"""What a call may ask of log probabilities in all, spoken over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of


@pytest.fixture(scope="module")
def tight() -> Iterator[RunningServer]:
    with running(Scene(config=replace(Scene().config, max_logprob_entries=120))) as server:
        server.play(lambda prompt, so_far, seed: 75)
        yield server


@pytest.mark.parametrize(
    ("body", "param", "numbers"),
    [
        ({"logprobs": 2, "max_tokens": 41}, "logprobs", "max_tokens 41 needs up to 123"),
        ({"logprobs": 2, "max_tokens": 14, "n": 3}, "logprobs", "126"),
        ({"prompt": ["a", "b"], "logprobs": 2, "max_tokens": 21}, "logprobs", "126"),
        ({"prompt": [75] * 61, "logprobs": 1, "max_tokens": 0, "echo": True}, "logprobs", "122"),
        ({"prompt": [75] * 61, "prompt_logprobs": 1, "max_tokens": 0}, "prompt_logprobs", "122"),
        ({"prompt": [75] * 40, "logprobs": 0, "max_tokens": 81, "echo": True}, "logprobs", "121"),
        ({"prompt": [75] * 21, "prompt_logprobs": 1, "max_tokens": 1, "n": 3}, "prompt_logprobs", "126"),
        ({"prompt": [75] * 21, "logprobs": 1, "max_tokens": 0, "echo": True, "n": 3}, "logprobs", "126"),
    ],
)
def test_more_is_refused_with_the_numbers(tight: RunningServer, body: dict[str, Any], param: str, numbers: str) -> None:
    error = error_of(httpx.post(f"{tight.base_url}{COMPLETIONS}", json=completion(**body)))
    assert error["param"] == param
    assert numbers in error["message"]
    assert "at most 120" in error["message"]


def test_as_many_are_answered(tight: RunningServer) -> None:
    answer = httpx.post(f"{tight.base_url}{COMPLETIONS}", json=completion(logprobs=2, max_tokens=40))
    assert len(answer.json()["choices"][0]["logprobs"]["tokens"]) == 40
    free = httpx.post(f"{tight.base_url}{COMPLETIONS}", json=completion(max_tokens=200, n=2))
    assert free.json()["usage"]["completion_tokens"] == 400


def test_a_default_is_cut_to_it(tight: RunningServer) -> None:
    body = chat("hi", logprobs=True, top_logprobs=3, n=2)
    answer = httpx.post(f"{tight.base_url}{CHAT}", json=body).json()
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["length", "length"]
    assert answer["usage"]["completion_tokens"] == 2 * 15
