from __future__ import annotations

from collections.abc import Sequence

import pytest

from service.core.sequence_group import SequenceGroup
from service.prediction.preemption_cost import RecoveryCosts
from service.scheduler.fcfs import FirstComeFirstServed
from service.scheduler.preemption import (
    AdaptivePreemption,
    AlwaysRecompute,
    AlwaysSwap,
    Preemption,
    Recovery,
    may_be_preempted,
    num_computed_tokens,
)
from tests.engine.harness import Harness
from tests.scheduler.test_request_pool import make_group


def run_under_pressure(preemption: Preemption, transfer_delay: int = 2) -> Harness:
    harness = Harness(
        num_blocks=10,
        block_size=2,
        max_num_batched_tokens=32,
        preemption=preemption,
        num_host_blocks=10,
        transfer_delay=transfer_delay,
    )
    for seed in range(5):
        assert harness.add(harness.request((1, 2, 3, seed), 8, seed=seed, n=1 + seed % 2))
    harness.run()
    for request_id, request in harness.requests.items():
        for choice in range(request.sampling.n):
            harness.check_against_oracle(request_id, choice)
    return harness


def test_two_that_share_a_prefix_leave_in_one_iteration():
    harness = Harness(num_blocks=10, max_num_batched_tokens=32, preemption=AlwaysSwap(), num_host_blocks=20)
    assert harness.add(harness.request((0, 1, 2, 3), 10))
    harness.step()
    for seed in range(4):
        assert harness.add(harness.request((1, 1, 1, 1, 1), 10, seed=seed))
        harness.step()
        harness.step()
    harness.run()
    left = [[set(t.device_blocks) for t in plan.transfers if t.to_host] for plan in harness.toy.plans]
    assert any(first & second for first, second, *_ in (blocks for blocks in left if len(blocks) > 1))
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)


def num_recomputed(harness: Harness) -> int:
    return sum(i.recomputed_tokens for i in harness.sink.iterations)


@pytest.mark.parametrize("transfer_delay", [0, 1, 3])
def test_swapped_equals_recomputed_equals_undisturbed(transfer_delay: int):
    swapped = run_under_pressure(AlwaysSwap(), transfer_delay)
    recomputed = run_under_pressure(AlwaysRecompute(), transfer_delay)
    assert swapped.tokens == recomputed.tokens
    assert any(plan.transfers for plan in swapped.toy.plans)
    assert not any(plan.transfers for plan in recomputed.toy.plans)
    assert num_recomputed(swapped) < num_recomputed(recomputed)


def test_adaptive_takes_the_cheaper_one_and_recomputes_what_it_does_not_know():
    group, adaptive = make_group("a"), AdaptivePreemption()
    assert adaptive.choose(group, RecoveryCosts(0.1, 0.2)) is Recovery.RECOMPUTE
    assert adaptive.choose(group, RecoveryCosts(0.2, 0.1)) is Recovery.SWAP
    assert adaptive.choose(group, RecoveryCosts(0.2, None)) is Recovery.RECOMPUTE
    assert adaptive.choose(group, RecoveryCosts(None, 0.1)) is Recovery.RECOMPUTE


def test_nothing_computed_is_nothing_to_swap():
    assert AlwaysSwap().choose(make_group("a"), RecoveryCosts(None, None)) is Recovery.RECOMPUTE


def test_choices_compute_the_prompt_once():
    group = make_group("a", n=3)
    group.is_forked = True
    for sequence in group.live:
        sequence.num_computed_tokens = 7
    assert num_computed_tokens(group) == 7 + 2 * 5


def test_who_was_preempted_often_is_spared_while_others_are_there():
    often, once = make_group("a"), make_group("b")
    often.num_preemptions, once.num_preemptions = 3, 1
    assert list(may_be_preempted([often, once], 3)) == [once]
    once.num_preemptions = 3
    assert list(may_be_preempted([often, once], 3)) == [often, once], "somebody must give way"


class WatchedFcfs(FirstComeFirstServed):
    """Records each victim's number of preemptions so far, and those of all candidates."""

    def __init__(self) -> None:
        self.choices: list[tuple[int, list[int]]] = []

    def victim(self, running: Sequence[SequenceGroup]) -> SequenceGroup:
        victim = super().victim(running)
        self.choices.append((victim.num_preemptions, [group.num_preemptions for group in running]))
        return victim


def test_no_victim_is_at_its_bound_while_another_is_below():
    watched = WatchedFcfs()
    harness = Harness(num_blocks=20, block_size=2, max_num_batched_tokens=32, max_preemptions=1, policy=watched)
    for seed in range(8):
        assert harness.add(harness.request((1, 2, 3, seed), 30, seed=seed))
        harness.clock.advance(0.001)
    harness.run(max_steps=1000)
    for request_id in harness.requests:
        harness.check_against_oracle(request_id)
    assert all(all(count >= 1 for count in counts) for preempted, counts in watched.choices if preempted >= 1)
    assert any(preempted >= 1 for preempted, _ in watched.choices), "where all are at the bound, somebody gives way"
