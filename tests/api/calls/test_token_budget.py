from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.calls.token_budget import kv_room, max_tokens_for
from service.core.request import Request
from service.core.sampling_params import SamplingParams
from service.core.stats import EngineSnapshot
from service.errors import ContextLengthExceeded
from service.kvcache.block_manager import BlockManager
from service.kvcache.prefix_cache import NoPrefixCache
from service.scheduler.admission import fits_ever


def budget(num_prompt_tokens: int, asked: int | None = None, default: int | None = None, room: int = 10**6) -> int:
    return max_tokens_for(
        num_prompt_tokens=num_prompt_tokens,
        asked=asked,
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


@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 40), st.sampled_from([1, 2, 4, 16]))
def test_the_room_is_the_most_that_the_engine_accepts(prompt: int, n: int, total: int, block_size: int) -> None:
    blocks = BlockManager(total, block_size, NoPrefixCache())
    room = kv_room(EngineSnapshot(total_blocks=total, block_size=block_size), prompt, n)

    def fits(max_tokens: int) -> bool:
        request = Request("r", (0,) * prompt, SamplingParams(max_tokens=max_tokens, n=n), 0.0)
        return fits_ever(request, blocks, max_num_seqs=64)

    assert not fits(room + 1)
    assert fits(room) or not fits(1)
