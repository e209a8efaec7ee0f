from collections.abc import Callable

from loadtest.baselines.engine_system import (
    EnginePolicies,
    EngineSystem,
    exact_limit,
    first_come_first_served,
    on_demand,
)
from loadtest.baselines.preemption_judge import fitted_cost
from loadtest.offline.figures_of_merit import mean_weighted_turnaround, output_throughput
from loadtest.offline.replay import replay
from loadtest.scenarios.adaptivellm_table3 import data_set, scarce_pool
from loadtest.scenarios.stage import SMALL, Stage
from service.kvcache.swap_space import SwapSpace
from service.scheduler.fairness import Fair
from service.scheduler.preemption import AdaptivePreemption
from service.scheduler.recovery_ledger import RecoveryLedger
from service.scheduler.scheduling_policy import SchedulingPolicy


def turnaround_and_rate(scheduling: Callable[[SwapSpace], SchedulingPolicy]) -> tuple[float, float]:
    """Of 300 chatbot requests at once, in the paper's memory."""
    stage = Stage(SMALL)
    pool = scarce_pool(stage)
    with pool.clock.working():
        ledger = RecoveryLedger(fitted_cost(pool))
    policies = EnginePolicies(on_demand(pool), exact_limit, scheduling, AdaptivePreemption(), ledger, max_num_seqs=64)
    outcome = replay(EngineSystem("", pool, policies), data_set(stage, "chatbot")[:300])
    return mean_weighted_turnaround(outcome), output_throughput(outcome)


def test_fair_lowers_the_weighted_turnaround_at_nearly_the_same_throughput() -> None:
    fcfs, fcfs_rate = turnaround_and_rate(first_come_first_served)
    fair, fair_rate = turnaround_and_rate(Fair)
    assert fair < 0.8 * fcfs
    assert fair_rate > 0.97 * fcfs_rate
