import random
from dataclasses import replace

import pytest

from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, on_demand
from loadtest.baselines.modelled_device import swap_s
from loadtest.baselines.preemption_judge import (
    TimedLedger,
    Timing,
    fitted_cost,
    held_out_error,
    recompute_beside_seconds,
    recompute_seconds,
    swap_seconds,
)
from loadtest.offline.replay import replay
from service.prediction.recovery_ledger import RecoveryLedger
from service.prediction.workload import Workload
from service.scheduler.preemption import AdaptivePreemption
from tests.loadtest.baselines.pools import pool, request


def test_what_is_predicted_is_what_is_measured() -> None:
    scarce = pool(num_blocks=32, num_host_blocks=8)
    with scarce.clock.working():
        cost = fitted_cost(scarce)
        costs = cost.predict(24, 0, 6, Workload.of_decodes(0, 0))
        assert costs.recompute_s == pytest.approx(recompute_seconds(scarce, 24), rel=0.1)
        assert costs.swap_s == pytest.approx(sum(swap_seconds(scarce, 6, 4)), rel=0.02)
        assert swap_seconds(scarce, 6, 4) == pytest.approx((swap_s(6, 4), swap_s(6, 4)))
        assert cost.swap_time.added_share == 0, "it copies beside the computation"


def test_what_recomputing_adds_is_predicted_as_it_is_measured() -> None:
    roomy = replace(pool(num_blocks=600), max_model_len=1024, max_num_seqs=32, max_num_batched_tokens=512)
    with roomy.clock.working():
        cost = fitted_cost(roomy)
        for num_tokens in (100, 300, 480):
            beside = cost.predict(num_tokens, 0, 1, Workload.of_decodes(16, 16 * roomy.block_size)).recompute_s
            assert beside == pytest.approx(recompute_beside_seconds(roomy, num_tokens, 16), rel=0.1, abs=3e-4)


@pytest.mark.parametrize(("num_tokens", "recovery"), [(8, "recompute"), (700, "swap")])
def test_who_is_quickly_computed_beside_the_others_is_computed_and_who_is_not_is_moved(
    num_tokens: int, recovery: str
) -> None:
    """By themselves 8 tokens would take 4.5 ms and their copies 0.1."""
    length = num_tokens + 40
    scarce = replace(
        pool(num_blocks=3 * length // 4, num_host_blocks=3 * length // 4),
        max_model_len=1024,
        max_num_batched_tokens=2048,
    )
    with scarce.clock.working():
        ledger = RecoveryLedger(fitted_cost(scarce))
    policies = EnginePolicies(on_demand(scarce), preemption=AdaptivePreemption(), ledger=ledger)
    system = EngineSystem("adaptive", scarce, policies)
    replay(system, [request(i, num_tokens, 60) for i in range(8)])
    log = system.log.iterations
    seen = {"recompute": sum(i.num_dropped for i in log), "swap": sum(i.num_swapped for i in log)}
    assert {kind for kind, count in seen.items() if count} == {recovery}


def test_the_ledger_knows_what_it_cost() -> None:
    scarce = pool(num_host_blocks=8)
    with scarce.clock.working():
        ledger = TimedLedger(fitted_cost(scarce))
    policies = EnginePolicies(on_demand(scarce), preemption=AdaptivePreemption(), ledger=ledger)
    system = EngineSystem("adaptive", scarce, policies)
    outcome = replay(system, [request(i, 8, 24) for i in range(6)])
    assert len(outcome.completions) == 6
    assert sum(i.num_dropped + i.num_swapped for i in system.log.iterations) > 0
    assert ledger.seconds > 0
    assert [workload.num_decodes + workload.num_prompts for workload, _ in ledger.timings] == [
        i.batch_size for i in system.log.iterations if i.batch_size
    ]


def test_what_was_held_out_is_predicted_as_well_as_iterations_repeat_themselves() -> None:
    chance = random.Random(1)

    def timings(noise: float) -> list[Timing]:
        lengths = [chance.randint(2, 250) for _ in range(400)]
        return [(Workload.of_chunk(0, n), (4e-3 + 1e-5 * n) * (1 + chance.choice((-noise, noise)))) for n in lengths]

    assert held_out_error(timings(0.0), None) < 0.1
    assert held_out_error(timings(0.03), None) == pytest.approx(3, rel=0.1)
