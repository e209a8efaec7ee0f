from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.calls.token_budget import kv_room, max_tokens_for
from service.core.adapter import Adapter
from service.core.layer_groups import TableGroups
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.stats import EngineSnapshot
from service.errors import ContextLengthExceeded, InvalidRequest
from service.kvcache.attention_window import AttentionWindow
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.admission import fits_ever
from tests.api.running_server import RunningServer, Scene, running
from tests.api.wire import CHAT, COMPLETIONS, chat, completion, error_of

RESPONSES = "/v1/responses"


def budget(
    num_prompt_tokens: int,
    asked: int | None = None,
    default: int | None = None,
    room: int = 10**6,
    min_tokens: int = 0,
) -> int:
    return max_tokens_for(
        num_prompt_tokens=num_prompt_tokens,
        asked=asked,
        min_tokens=min_tokens,
        default=default,
        max_model_len=100,
        room=room,
        prompt_param="prompt",
        param="max_tokens",
    )


def test_budget() -> None:
    assert budget(10, asked=90) == 90
    assert budget(10, default=16) == 16
    assert budget(90, default=16) == 10
    assert budget(10) == 90
    assert budget(99) == 1
    assert budget(100, asked=0) == 0  # a prompt that nothing is to follow may fill the context
    assert budget(10, room=7) == budget(10, default=16, room=7) == 7
    assert budget(10, asked=50, room=7) == 50  # what was asked for is the engine's to refuse


@pytest.mark.parametrize(
    ("prompt", "asked", "param"),
    [(100, None, "prompt"), (10, 91, "max_tokens"), (200, 1, "prompt"), (100, 1, "prompt"), (101, 0, "prompt")],
)
def test_what_does_not_fit_is_refused_with_the_numbers(prompt: int, asked: int | None, param: str) -> None:
    with pytest.raises(ContextLengthExceeded) as refusal:
        budget(prompt, asked)
    assert refusal.value.param == param
    assert "100" in refusal.value.message
    assert str(prompt) in refusal.value.message
    if param == "max_tokens":
        assert "101 were requested (10 in the prompt, 91 in max_tokens)" in refusal.value.message


@pytest.mark.parametrize(
    ("prompt", "limits", "told"),
    [
        (10, {"asked": 5}, "max_tokens (5), got 6"),
        (10, {"asked": 0}, "max_tokens (0), got 6"),
        (10, {"default": 5}, "max_tokens (5, as the request gives none), got 6"),
        (95, {}, "max_tokens (5, as the request gives none), got 6"),
        (10, {"room": 5}, "max_tokens (5, as the request gives none), got 6"),
    ],
)
def test_more_tokens_at_least_than_at_most_are_refused(prompt: int, limits: dict[str, int], told: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        budget(prompt, **limits, min_tokens=6)
    assert refusal.value.param == "min_tokens"
    assert refusal.value.message == f"min_tokens must be at most {told}."


def test_as_many_tokens_at_least_as_at_most_are_taken() -> None:
    assert budget(10, asked=6, min_tokens=6) == budget(94, min_tokens=6) == budget(10, room=6, min_tokens=6) == 6


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (COMPLETIONS, completion(min_tokens=17), "max_tokens (16, as the request gives none), got 17"),
        (COMPLETIONS, completion(min_tokens=1, max_tokens=0, echo=True), "max_tokens (0), got 1"),
        (CHAT, chat("hi", min_tokens=6, max_tokens=5), "max_tokens (5), got 6"),
        (CHAT, chat("hi", min_tokens=6, max_tokens=9, max_completion_tokens=5), "max_completion_tokens (5), got 6"),
        (RESPONSES, {"input": "hi", "min_tokens": 6, "max_output_tokens": 5}, "max_output_tokens (5), got 6"),
        (RESPONSES, {"input": "hi", "min_tokens": 3000}, "as the request gives none), got 3000"),
    ],
)
def test_each_api_names_its_own_limit(http: httpx.Client, path: str, body: dict[str, Any], told: str) -> None:
    error = error_of(http.post(path, json=body))
    assert error["param"] == "min_tokens"
    assert error["message"].startswith("min_tokens must be at most max_")
    assert error["message"].endswith(f"{told}.")


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 40), st.sampled_from([1, 2, 4, 16]), st.integers(0, 50))
def test_the_room_is_the_most_that_the_engine_accepts(
    prompt: int, n: int, total: int, block_size: int, of_adapter: int
) -> None:
    blocks = BlockManager(total, block_size, NoPrefixCache())
    adapter = Adapter("poet", 1, of_adapter, "ab") if of_adapter else None
    room = kv_room(
        EngineSnapshot(total_blocks=total, block_size=block_size, longest_sequence=total * block_size),
        prompt,
        n,
        adapter,
    )

    def fits(max_tokens: int) -> bool:
        request = Request("r", (0,) * prompt, SamplingParams(max_tokens=max_tokens, n=n), 0.0, adapter=adapter)
        return fits_ever(request, blocks, max_num_seqs=64)

    assert not fits(room + 1)
    assert fits(room) or not fits(1)


@given(st.integers(1, 90), st.integers(40, 90), st.sampled_from([1, 2, 4]))
def test_where_some_layers_see_a_window_the_room_is_what_the_engine_accepts(prompt: int, total: int, block_size: int):
    window = AttentionWindow(9, 8, TableGroups(1, 2))
    blocks = BlockManager(total, block_size, NoPrefixCache(), window=window)
    snapshot = EngineSnapshot(total_blocks=total, longest_sequence=blocks.longest_sequence, num_layer_groups=3)
    room = kv_room(snapshot, prompt, 1)

    def fits(max_tokens: int) -> bool:
        return fits_ever(Request("r", (0,) * prompt, SamplingParams(max_tokens=max_tokens), 0.0), blocks, 64)

    assert not fits(room + 1)
    assert fits(room) or not fits(1)


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
