"""AdaptiveLLM, figure 8: mean weighted turnaround against the limit on the batch size, `fair` beside `fcfs`.

(finish - sent) / (finish - first scheduled), averaged over the requests; 1: no waiting. On a GPU iterations overlap, as
when serving. The modelled device simulates no host time that could be hidden.
"""

import dataclasses
from collections.abc import Sequence
from statistics import fmean

from loadtest.baselines.engine_system import (
    EnginePolicies,
    EngineSystem,
    exact_limit,
    first_come_first_served,
    on_demand,
)
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.preemption_judge import fitted_cost
from loadtest.offline.figures_of_merit import (
    mean_batch_size,
    mean_weighted_turnaround,
    memory_shares,
    output_throughput,
)
from loadtest.offline.replay import replay
from loadtest.offline.serving_system import OfflineRequest
from loadtest.scenarios.adaptivellm_table3 import DATA_SETS, data_set, scarce_pool
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.stage import Stage
from loadtest.svg_plot import Axes, Curve
from service.prediction.recovery_ledger import RecoveryLedger
from service.scheduler.fairness import Fair
from service.scheduler.preemption import AdaptivePreemption

NAME = "adaptivellm_fig8"
POLICIES = {"fcfs": first_come_first_served, "fair": Fair}


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """One replay with one policy. counts: what explains its throughput, see `COUNTS`."""

    turnaround: float
    tokens_per_s: float
    counts: Sequence[float]


COUNTS = (
    "iterations",
    "batch",
    "KV memory held, %",
    "swapped",
    "dropped",
    "tokens recomputed",
    "deciding, ms/iteration",
)


def measure(pool: KvPool, ledger: RecoveryLedger, kind: str, requests: list[OfflineRequest], limit: int) -> Measured:
    """Serve the requests with that policy, at most `limit` at once."""
    policies = EnginePolicies(
        on_demand(pool), exact_limit, POLICIES[kind], AdaptivePreemption(), ledger, max_num_seqs=limit
    )
    system = EngineSystem(kind, pool, policies)
    outcome = replay(system, requests)
    log = system.log.iterations
    counts = (
        len(log),
        mean_batch_size(outcome),
        100 * memory_shares(outcome).held,
        sum(i.num_swapped for i in log),
        sum(i.num_dropped for i in log),
        sum(i.recomputed_tokens for i in log),
        1e3 * fmean(i.schedule_s for i in log),
    )
    return Measured(mean_weighted_turnaround(outcome), output_throughput(outcome), counts)


def run(stage: Stage) -> Figure:
    """The figure."""
    pool = dataclasses.replace(scarce_pool(stage), overlap=not stage.form.models_policies)
    with pool.clock.working():
        ledger = RecoveryLedger(fitted_cost(pool))
    limits = (16, 32, 64, 128) if stage.form.models_policies else (128,)
    rows: list[list[object]] = []
    counts: list[list[object]] = []
    curves: list[Curve] = []
    for name in DATA_SETS:
        requests = data_set(stage, name, 400 if stage.form.models_policies else 100)
        turnarounds: dict[str, list[float]] = {kind: [] for kind in POLICIES}
        for limit in limits:
            results = {kind: measure(pool, ledger, kind, requests, limit) for kind in POLICIES}
            for kind, measured in results.items():
                turnarounds[kind].append(measured.turnaround)
                counts.append([name, limit, kind, measured.tokens_per_s, *measured.counts])
            fcfs, fair = results["fcfs"], results["fair"]
            lower = 100 * (1 - fair.turnaround / fcfs.turnaround)
            rate = fair.tokens_per_s / fcfs.tokens_per_s
            rows.append([name, len(requests), limit, fcfs.turnaround, fair.turnaround, lower, rate])
        for kind, values in turnarounds.items():
            curves.append(Curve(f"{name}, {kind}", limits, values, len(curves), markers=True))
    columns = ["lengths", "requests", "batch limit", "fcfs", "fair", "fair is lower by, %", "throughput, fair / fcfs"]
    return Figure(
        NAME,
        "AdaptiveLLM figure 8: mean weighted turnaround",
        f"the offline engine on {stage.policy_device}{', iterations overlap' if pool.overlap else ''}",
        [
            Table("Mean of (finish - sent) / (finish - first scheduled)", columns, rows),
            Table("What explains the throughput", ["lengths", "batch limit", "policy", "tokens/s", *COUNTS], counts),
        ],
        [Plot(Axes("Mean weighted turnaround", "batch limit (log)", "ratio", log_x=True), curves)],
        ["all requests at once; in the paper it falls by 20 to 40 % at batch limits of 64 and 128"],
    )
