import pytest

from loadtest.baselines.preemption_judge import fitted_cost
from loadtest.scenarios.adaptivellm_fig8 import COUNTS, Measured, measure
from loadtest.scenarios.adaptivellm_table3 import data_set, scarce_pool
from loadtest.scenarios.stage import SMALL, Stage
from service.prediction.recovery_ledger import RecoveryLedger


def of_300_requests(workload: str, kind: str) -> Measured:
    """At once, in the paper's memory."""
    stage = Stage(SMALL)
    pool = scarce_pool(stage)
    with pool.clock.working():
        ledger = RecoveryLedger(fitted_cost(pool))
    return measure(pool, ledger, kind, data_set(stage, workload)[:300], 64)


@pytest.mark.parametrize(("workload", "turnaround"), [("chatbot", 0.65), ("alpaca", 0.7)])
def test_fair_lowers_the_weighted_turnaround_at_nearly_the_same_throughput(workload: str, turnaround: float) -> None:
    fcfs, fair = of_300_requests(workload, "fcfs"), of_300_requests(workload, "fair")
    assert fair.turnaround < turnaround * fcfs.turnaround
    assert fair.tokens_per_s > 0.95 * fcfs.tokens_per_s
    for measured in (fcfs, fair):
        counts = dict(zip(COUNTS, measured.counts, strict=True))
        assert counts["swapped"] > 0
        assert counts["iterations"] * counts["batch"] > 300 * 40
