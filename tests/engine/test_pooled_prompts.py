"""Laws of requests for a prompt's pooled hidden states: whatever runs beside them, these are as when computed alone."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from service.core.embedding import Pooling, Vector
from service.core.events import Outcome
from service.core.request import FinishReason
from service.errors import ServerError
from tests.engine.harness import Harness
from tests.engine.test_engine import SometimesSwap
from tests.engine.toy_model import ToyExecutor, cells_of, pooled_cells

Prompt = tuple[int, ...]


def expected(prompt: Prompt, pooling: Pooling) -> Vector:
    if pooling == "last":
        return pooled_cells(cells_of(prompt), 1)
    return pooled_cells(cells_of(prompt), len(prompt)) / len(prompt)


def prompts(count: int) -> list[Prompt]:
    chance = random.Random(3)
    shared = tuple(chance.randrange(1, 40) for _ in range(16))
    return [
        shared[: chance.choice([0, 8, 16])] + tuple(chance.randrange(1, 40) for _ in range(chance.randint(1, 30)))
        for _ in range(count)
    ]


def embed(harness: Harness, prompt: Prompt, pooling: Pooling) -> str:
    request = harness.request(prompt, 0, pooling=pooling)
    assert harness.add(request)
    return request.request_id


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize(
    "how",
    [
        {"max_num_batched_tokens": 1000},
        {"max_num_batched_tokens": 3, "max_num_seqs": 2},
        {"overlap": True},
        {"num_blocks": 14},
        {
            "num_blocks": 14,
            "overlap": True,
            "num_host_blocks": 14,
            "preemption": SometimesSwap(0.5),
            "transfer_delay": 1,
        },
    ],
    ids=["whole", "chunked", "overlapped", "preempted", "swapped"],
)
def test_vectors_are_the_same_whole_or_in_chunks_beside_others_and_after_preemptions(
    pooling: Pooling, how: dict[str, Any]
):
    harness, texts = Harness(**how), prompts(24)
    asked = []
    for index, prompt in enumerate(texts):
        asked.append(embed(harness, prompt, pooling))
        if index % 3 == 0:
            harness.add(harness.request(prompt[:9], 20))
        if index % 5 == 0:
            harness.step()
    harness.run()
    for request_id, prompt in zip(asked, texts, strict=True):
        np.testing.assert_array_equal(harness.pooled[request_id], expected(prompt, pooling))
        assert harness.finals[request_id].outcome is Outcome.FINISHED
    if "num_blocks" in how:
        assert any(stats.num_preemptions for stats, _, _ in harness.sink.requests)
    assert not any(key[0] in asked for key in harness.tokens)
    assert harness.blocks.pool.num_used == 0


@pytest.mark.parametrize(("pooling", "num_cached"), [("last", 16), ("mean", 0)])
def test_the_prefix_cache_is_asked_where_the_last_token_is_enough(pooling: Pooling, num_cached: int):
    harness, prompt = Harness(), tuple(range(1, 18))
    embed(harness, prompt, pooling)
    harness.run()
    again = embed(harness, prompt, pooling)
    harness.run()
    np.testing.assert_array_equal(harness.pooled[again], expected(prompt, pooling))
    assert harness.finals[again].stats.num_cached_tokens == num_cached


def test_it_ends_by_itself_and_draws_nothing():
    harness = Harness()
    embed(harness, (1, 2, 3), "last")
    harness.run()
    ((stats, outcome, reasons),) = harness.sink.requests
    assert (outcome, reasons) == (Outcome.FINISHED, (FinishReason.STOP,))
    assert stats.num_output_tokens == 0
    assert sum(each.generated_tokens for each in harness.sink.iterations) == 0


class NotFinite(ToyExecutor):
    """Returns hidden states that are not finite for some prompts."""

    def _pool(self, item: Any) -> Vector:
        vector = super()._pool(item)
        return vector * np.float32("nan") if 13 in item.token_ids else vector


def test_hidden_states_that_are_no_numbers_fail_their_own_request_only():
    harness = Harness(executor=NotFinite(64, 4, 1000))
    good, bad = embed(harness, (1, 2, 3), "mean"), embed(harness, (1, 13, 3), "mean")
    harness.run()
    assert isinstance(harness.finals[bad].error, ServerError)
    assert bad not in harness.pooled
    np.testing.assert_array_equal(harness.pooled[good], expected((1, 2, 3), "mean"))
