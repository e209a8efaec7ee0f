import random

import pytest

from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, on_demand
from loadtest.baselines.modelled_device import swap_s
from loadtest.baselines.preemption_judge import (
    TimedLedger,
    Timing,
    fitted_cost,
    held_out_error,
    recompute_seconds,
    swap_seconds,
)
from loadtest.offline.replay import replay
from service.prediction.iteration_time import Workload
from service.scheduler.preemption import AdaptivePreemption
from tests.loadtest.baselines.pools import pool, request


def test_what_is_predicted_is_what_is_measured() -> None:
    scarce = pool(num_blocks=32, num_host_blocks=8)
    with scarce.clock.working():
        costs = fitted_cost(scarce).predict(24, 0, 6)
        assert costs.recompute_s == pytest.approx(recompute_seconds(scarce, 24), rel=0.1)
        assert costs.swap_s == pytest.approx(sum(swap_seconds(scarce, 6, 4)), rel=0.02)
        assert swap_seconds(scarce, 6, 4) == pytest.approx((swap_s(6, 4), swap_s(6, 4)))


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
