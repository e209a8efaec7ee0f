"""AdaptiveLLM, figure 8: mean weighted turnaround against the limit on the batch size, `fair` beside `fcfs`.

(finish - sent) / (finish - first scheduled), averaged over the requests; 1 is no waiting.
"""

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
from loadtest.scenarios.adaptivellm_table3 import DATA_SETS, data_set, scarce_pool
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.stage import Stage
from loadtest.svg_plot import Axes, Curve
from service.scheduler.fairness import Fair
from service.scheduler.preemption import AdaptivePreemption
from service.scheduler.recovery_ledger import RecoveryLedger

NAME = "adaptivellm_fig8"


def run(stage: Stage) -> Figure:
    """The figure."""
    pool = scarce_pool(stage)
    with pool.clock.working():
        ledger = RecoveryLedger(fitted_cost(pool))
    limits = (16, 32, 64, 128) if stage.form.models_policies else (64, 128)
    rows: list[list[object]] = []
    curves: list[Curve] = []
    for name in DATA_SETS:
        requests = data_set(stage, name, 400 if stage.form.models_policies else 100)
        turnarounds: dict[str, list[float]] = {"fcfs": [], "fair": []}
        for limit in limits:
            rates = {}
            for kind, scheduling in (("fcfs", first_come_first_served), ("fair", Fair)):
                policies = EnginePolicies(
                    on_demand(pool), exact_limit, scheduling, AdaptivePreemption(), ledger, max_num_seqs=limit
                )
                outcome = replay(EngineSystem(kind, pool, policies), requests)
                turnarounds[kind].append(mean_weighted_turnaround(outcome))
                rates[kind] = output_throughput(outcome)
            fcfs, fair = turnarounds["fcfs"][-1], turnarounds["fair"][-1]
            lower = 100 * (1 - fair / fcfs)
            rows.append([name, len(requests), limit, fcfs, fair, lower, rates["fair"] / rates["fcfs"]])
        for kind, values in turnarounds.items():
            curves.append(Curve(f"{name}, {kind}", limits, values, len(curves), markers=True))
    columns = ["lengths", "requests", "batch limit", "fcfs", "fair", "fair lower by, %", "throughput, fair / fcfs"]
    return Figure(
        NAME,
        "AdaptiveLLM figure 8: mean weighted turnaround",
        f"the offline engine on {stage.policy_device}",
        [Table("Mean of (finish - sent) / (finish - first scheduled)", columns, rows)],
        [Plot(Axes("Mean weighted turnaround", "batch limit (log)", "ratio", log_x=True), curves)],
        ["all requests at once; the paper's fall: 20 to 40 % at batch limits of 64 and 128"],
    )
