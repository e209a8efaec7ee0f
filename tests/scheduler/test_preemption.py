from __future__ import annotations

import pytest

from service.core.iteration_plan import IterationPlan, Sample, ScheduledSequence
from service.core.sampling_params import SamplingParams
from service.scheduler.preemption import (
    AdaptivePreemption,
    AlwaysRecompute,
    AlwaysSwap,
    Preemption,
    Recovery,
    num_computed_tokens,
)
from service.scheduler.preemption_cost import PreemptionCost, SwapBandwidth, num_attended_pairs
from tests.engine.harness import Harness
from tests.scheduler.test_request_pool import make_group


def make_cost(bytes_per_s: float) -> PreemptionCost:
    cost = PreemptionCost(SwapBandwidth(1000, bytes_per_s, bytes_per_s), 100)
    for num_tokens in (1, 10, 50, 100):
        cost.observe(num_tokens, num_attended_pairs(0, num_tokens), 0.001 * num_tokens)
    cost.fit()
    return cost


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


def test_adaptive_takes_the_cheaper_one():
    group = make_group("a")
    group.leader.num_computed_tokens = 64
    slow_link, fast_link = AdaptivePreemption(make_cost(1e4)), AdaptivePreemption(make_cost(1e9))
    assert slow_link.choose(group, num_blocks=4) is Recovery.RECOMPUTE
    assert fast_link.choose(group, num_blocks=4) is Recovery.SWAP


def test_nothing_computed_is_nothing_to_swap():
    assert AlwaysSwap().choose(make_group("a"), num_blocks=4) is Recovery.RECOMPUTE


def test_choices_compute_the_prompt_once():
    group = make_group("a", n=3)
    group.is_forked = True
    for sequence in group.live:
        sequence.num_computed_tokens = 7
    assert num_computed_tokens(group) == 7 + 2 * 5


def test_adaptive_learns_from_prefills_whose_time_it_knows():
    cost = make_cost(1e9)
    before = cost.recompute_s(100)
    adaptive = AdaptivePreemption(cost)
    params = SamplingParams(max_tokens=1)

    def plan(num_tokens: int, *, draws: bool) -> IterationPlan:
        samples = (Sample(0, 0),) if draws else ()
        return IterationPlan((ScheduledSequence(0, (0,) * num_tokens, 0, 0, (), params, samples),))

    for _ in range(1000):
        adaptive.observe(plan(1, draws=True), 5.0)
        adaptive.observe(plan(100, draws=False), 5.0)
    assert cost.recompute_s(100) == before
    for _ in range(1000):
        adaptive.observe(plan(100, draws=True), 0.5)
    assert cost.recompute_s(100) == pytest.approx(0.5, rel=0.01)
