from __future__ import annotations

import random

import pytest

from service.core.stats import AdapterUse
from service.scheduler.chunk_budget import FixedBudget
from service.scheduler.preemption import AlwaysSwap
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
    assert len(harness.scheduler.lanes.batch) == 1
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
    """Also if the prompt is preempted midway, and another request has computed more of the same meanwhile."""
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


def test_who_has_no_slot_waits_for_one_and_nobody_overtakes():
    harness = Harness(num_adapter_slots=1, max_num_batched_tokens=64)
    first, second = harness.adapter(2), harness.adapter(2)
    for adapter in (first, second, first, None):
        harness.add(harness.request((1, 2, 3), 4, adapter=adapter))
    harness.step()
    assert running(harness) == ["request-0"], "neither who finds its adapter there, nor who needs none"
    harness.run()
    assert list(harness.finals) == [f"request-{number}" for number in range(4)]
    assert waited_for_all(harness) == ["iteration", "adapter", "adapter", "adapter"]
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


def test_an_adapter_is_loaded_once_for_all_who_run_with_it_in_the_iteration_that_first_computes_them():
    harness = Harness(num_adapter_slots=2, max_num_batched_tokens=64)
    adapter = harness.adapter(3)
    for number in range(3):
        harness.add(harness.request((number, 2), 4, adapter=adapter))
    harness.add(harness.request((1, 2), 4))
    harness.step()
    [load] = harness.toy.plans[0].adapter_loads
    assert [item.adapter_slot for item in harness.toy.plans[0].scheduled] == [load.slot] * 3 + [0]
    assert harness.engine.snapshot().adapters == AdapterUse(2, 1, 3, {adapter.name: 3}, {})
    harness.run()
    harness.add(harness.request((9, 2), 4, adapter=adapter))
    harness.run()
    assert not any(plan.adapter_loads for plan in harness.toy.plans[1:]), "it is still there"
    assert sum(stats.num_adapter_loads for stats in harness.sink.iterations) == 1


def test_blocks_for_the_adapter_are_part_of_what_a_group_needs():
    harness = Harness(num_blocks=8, block_size=2, num_adapter_slots=2, max_num_batched_tokens=64)
    harness.add(harness.request((1, 2, 3, 4), 2))
    assert not harness.add(harness.request((1, 2), 4, adapter=harness.adapter(6))), "they never fit together"
    harness.add(harness.request((1, 2), 2, adapter=harness.adapter(6)))
    harness.step()
    assert running(harness) == ["request-0"]
    harness.run()
    assert waited_for_all(harness) == ["iteration", "adapter"]


def test_a_cached_beginning_is_not_overwritten_by_the_adapter_of_who_finds_it():
    harness = Harness(num_blocks=6, block_size=2, num_adapter_slots=1, max_num_batched_tokens=64)
    adapter = harness.adapter(2)
    for _ in range(2):
        harness.add(harness.request((1, 2, 3, 4, 5), 3, adapter=adapter))
        harness.run()
        harness.blocks.adapter_slots.forget(adapter)
    assert [stats.num_cached_tokens for stats, _, _ in harness.sink.requests] == [0, 4]
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


@pytest.mark.parametrize("overlap", [False, True])
def test_idle_adapters_go_before_anybody_is_preempted(overlap: bool):
    harness = Harness(num_blocks=10, block_size=2, num_adapter_slots=4, max_num_batched_tokens=64, overlap=overlap)
    for number in range(3):
        harness.add(harness.request((number,), 1, adapter=harness.adapter(2)))
        harness.run()
    assert harness.engine.snapshot().adapters.num_resident == 3
    harness.add(harness.request((1, 2, 3), 17))
    harness.run()
    assert harness.sink.requests[-1][0].num_preemptions == 0
    assert harness.engine.snapshot().adapters.num_resident == 0
    assert sum(stats.num_adapter_evictions for stats in harness.sink.iterations) == 3


@pytest.mark.parametrize("overlap", [False, True])
def test_who_returns_from_the_host_is_told_the_slot_that_its_adapter_has_then(overlap: bool):
    harness = Harness(
        num_blocks=10,
        block_size=2,
        num_adapter_slots=2,
        max_num_batched_tokens=64,
        preemption=AlwaysSwap(),
        num_host_blocks=20,
        transfer_delay=1,
        overlap=overlap,
        policy="priority",
    )
    low = harness.request((1, 2, 3), 12, adapter=harness.adapter(2), priority=0)
    harness.add(low)
    for _ in range(3):
        harness.step()
    for number in range(2):
        harness.add(harness.request((number,), 12, adapter=harness.adapter(2), priority=1))
    harness.run()
    group = harness.finals[low.request_id].stats
    assert group.num_preemptions > 0
    slots = {item.adapter_slot for plan in harness.toy.plans for item in plan.scheduled if item.sequence_id == 0}
    assert slots == {1, 2}
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


def test_a_prompt_takes_the_blocks_of_its_first_chunk_and_more_with_each_further_one():
    harness = Harness(num_blocks=20, block_size=2, max_num_batched_tokens=9)
    harness.add(harness.request(tuple(range(25)), 2))
    held = []
    while harness.engine.has_work:
        harness.step()
        held.append(harness.blocks.pool.num_used)
    assert held == [5, 9, 13, 0]
    harness.check_against_oracle("request-0")


@pytest.mark.parametrize("admission", ["on-demand", "reserve"])
def test_who_starts_leaves_the_blocks_that_running_prompts_will_take(admission):
    """So nothing is preempted for a prompt whose room was counted when it started."""
    harness = Harness(num_blocks=12, block_size=2, max_num_batched_tokens=10, admission=admission)
    harness.add(harness.request(tuple(range(16)), 1))
    harness.add(harness.request(tuple(range(50, 58)), 1))
    harness.add(harness.request(tuple(range(70, 72)), 1))
    harness.step()
    assert harness.blocks.pool.num_free == 7
    harness.step()
    assert running(harness) == ["request-1"] and "request-0" in harness.finals, "both fit, in two chunks each"
    harness.run()
    assert not any(stats.num_preemptions for stats, _, _ in harness.sink.requests)


def test_who_does_not_fit_beside_a_running_prompt_waits_though_blocks_are_free():
    harness = Harness(num_blocks=12, block_size=2, max_num_batched_tokens=16, chunk_budget=FixedBudget(10))
    harness.add(harness.request(tuple(range(22)), 1))
    harness.step()
    harness.add(harness.request((1, 2, 3), 1))
    held = [harness.blocks.pool.num_used]
    while "request-0" not in harness.finals:
        harness.step()
        held.append(harness.blocks.pool.num_used)
        assert "request-1" not in running(harness) or "request-0" in harness.finals
    assert held == [5, 10, 0]
    harness.run()
    assert not any(stats.num_preemptions for stats, _, _ in harness.sink.requests)


def waited_for_all(harness: Harness) -> list[str]:
    """What each ended request last waited for, in order of their ends."""
    return [stats.waits[-1].reason for stats, _, _ in harness.sink.requests]
