from __future__ import annotations

import pytest

from tests.engine.harness import Harness

POLICIES = ["fcfs", "priority", "fair", "shares"]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_background_starts_when_nobody_else_waits_and_as_it_came(policy: str):
    harness = Harness(max_num_seqs=1, max_num_batched_tokens=8, policy=policy)
    for is_background in (True, True, False, True, False):
        harness.add(harness.request((1, 2), 2, is_background=is_background))
    harness.run()
    assert list(harness.finals) == ["request-2", "request-4", "request-0", "request-1", "request-3"]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_background_gives_its_memory_up_first(policy: str):
    harness = Harness(num_blocks=6, block_size=2, max_num_batched_tokens=32, policy=policy)
    for number, is_background in enumerate((True, False, True)):
        harness.add(harness.request((1, 2), 8, seed=number, is_background=is_background))
    harness.run()
    assert next(iter(harness.finals)) == "request-1"
    preempted = [stats.num_preemptions for stats, _, _ in harness.sink.requests]
    assert sum(preempted) > 0
    assert preempted[0] == 0, "the one that is not in the background, which ends first"
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


def test_prompts_of_others_are_computed_before_those_of_the_background():
    """One that has begun before them, too."""
    harness = Harness(max_num_seqs=4, max_num_batched_tokens=8)
    harness.add(harness.request(tuple(range(1, 41)), 2, is_background=True))
    harness.step()
    harness.add(harness.request((1, 2, 3), 1))
    harness.run()
    assert list(harness.finals) == ["request-1", "request-0"]
