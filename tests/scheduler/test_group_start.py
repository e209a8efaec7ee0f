from __future__ import annotations

import random

import pytest

from tests.engine.harness import Harness


def running(harness: Harness) -> list[str]:
    return [group.request.request_id for group in harness.scheduler.pool.running]


def waited_for(harness: Harness, request_id: str) -> list[str]:
    group = harness.scheduler.pool.get(request_id)
    assert group is not None
    return [wait.reason for wait in group.journal.waits]


def test_the_first_that_does_not_fit_ends_the_admissions():
    harness = Harness(num_blocks=6, block_size=2, max_num_batched_tokens=64)
    harness.add(harness.request((1, 2, 3, 4), 2))
    harness.add(harness.request((1,) * 9, 2))
    harness.add(harness.request((1, 2), 2))
    harness.step()
    assert running(harness) == ["request-0"], "the small one does not overtake"


def test_those_in_the_decode_batch_have_seats_too():
    harness = Harness(max_num_seqs=2)
    harness.add(harness.request((1, 2), 9))
    harness.step()
    assert len(harness.scheduler.batch) == 1
    harness.add(harness.request((1, 2), 9))
    harness.add(harness.request((1, 2), 9))
    harness.step()
    assert running(harness) == ["request-0", "request-1"]


def test_who_starts_has_waited_for_what_was_lacking():
    harness = Harness(max_num_seqs=1)
    harness.add(harness.request((1, 2), 3))
    harness.add(harness.request((1, 2), 3))
    while "request-0" not in harness.finals:
        harness.step()
    harness.step()
    assert waited_for(harness, "request-1") == ["sequences"]


def test_a_cached_beginning_is_counted_once():
    harness = Harness(block_size=2, max_num_batched_tokens=64)
    harness.add(harness.request((1, 2, 3, 4, 5), 2))
    harness.run()
    harness.add(harness.request((1, 2, 3, 4, 9), 2))
    harness.run()
    assert [stats.num_cached_tokens for stats, _, _ in harness.sink.requests] == [0, 4]
    assert sum(i.prefix_hit_tokens for i in harness.sink.iterations) == 4
    assert sum(i.prefix_queried_tokens for i in harness.sink.iterations) == 10


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
def test_a_seat_is_free_from_when_its_last_token_is_being_drawn(max_tokens: int):
    harness = Harness(max_num_seqs=1, overlap=True)
    for number in range(3):
        harness.add(harness.request((number, 1, 2), max_tokens))
    num_launched = []
    while harness.engine.has_work:
        harness.step()
        num_launched.append(len(harness.engine._launched))
    assert len(harness.toy.plans) == 3 * max_tokens
    assert num_launched == [*[1] * (3 * max_tokens), 0], "an iteration runs after every step, until the last"


def test_each_token_of_a_prompt_is_computed_for_it_for_the_first_time_or_cached():
    """Also if the prompt is preempted in its middle, and another has computed more of the same meanwhile."""
    num_again = 0
    for seed in range(40):
        chance = random.Random(seed)
        harness = Harness(num_blocks=12, block_size=2, max_num_seqs=6, max_num_batched_tokens=8, policy="priority")
        prompt = tuple(chance.randrange(3) for _ in range(18))
        for number in range(10):
            beginning = prompt[: chance.randint(2, 18)]
            harness.add(harness.request(beginning, chance.randint(1, 8), seed=number, priority=number))
            for _ in range(chance.choice([0, 1, 3])):
                harness.step()
        harness.run()
        computed = sum(stats.prompt_tokens for stats in harness.sink.iterations)
        cached = sum(stats.num_cached_tokens for stats, _, _ in harness.sink.requests)
        assert computed + cached == sum(stats.num_prompt_tokens for stats, _, _ in harness.sink.requests)
        num_again += sum(stats.recomputed_tokens for stats in harness.sink.iterations)
    assert num_again > 0
