"""PagedAttention, figure 12: normalized latency against request rate, on ShareGPT-like and Alpaca-like lengths.

Memory is scarce. The output limit is the workload's greatest, which is what a system that does not know better
reserves: ORCA (Max) and SimpleReqManager. ORCA (Oracle) knows each answer's length. Static batching pads and waits.
"""

from collections.abc import Callable

from loadtest.baselines.engine_system import constant_limit, exact_limit, paged, power_of_two_limit, reserve
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.simple_req_manager import simple_req_manager
from loadtest.baselines.static_batching import StaticBatching
from loadtest.offline.serving_system import ServingSystem
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.rate_sweep import Sweep, latency_plot, sweep
from loadtest.scenarios.stage import Stage

NAME = "pagedattention_fig12"
OUTPUT_LIMITS = {"sharegpt": 1024, "alpaca": 512}
LATENCY_FACTOR = 3.0
"""Rates are compared where the mean normalized latency is so many times the least of any system."""


def run(stage: Stage) -> Figure:
    """The figure."""
    pool = stage.pool()
    tables = []
    plots = []
    for workload, output_limit in OUTPUT_LIMITS.items():
        if workload == "alpaca" and not stage.form.models_policies:
            continue  # a GPU's minutes are for the lengths in which the systems differ most
        sweeps = [sweep(stage, make, workload) for make in _systems(pool, output_limit)]
        tables.append(_table(workload, sweeps))
        plots.append(latency_plot(workload, sweeps, lambda point: point.mean_normalized_s, "mean ms/token"))
    return Figure(
        NAME,
        "PagedAttention figure 12: sustained rate at equal normalized latency",
        f"the offline engine on {stage.policy_device}",
        tables,
        plots,
        [
            f"KV memory for {pool.num_tokens} tokens, {pool.max_num_seqs} seats",
            "sustained 0: above that latency at the system's lowest rate",
        ],
    )


def _table(workload: str, sweeps: list[Sweep]) -> Table:
    least = min(point.mean_normalized_s for one in sweeps for point in one.points)
    rates = [one.sustained_rate(LATENCY_FACTOR * least) for one in sweeps]
    best = sweeps[0].capacity
    rows = [
        [one.system, one.batch_size, one.capacity, best / one.capacity, rate, rates[0] / rate if rate else None]
        for one, rate in zip(sweeps, rates, strict=True)
    ]
    columns = [
        "system", "sequences/iteration", "full load, req/s", "paged over it", "sustained, req/s", "paged over it",
    ]  # fmt: skip
    limit = f"{LATENCY_FACTOR:g} x {least * 1e3:.3g} ms/token"
    return Table(f"{workload}: sustained at a mean normalized latency of {limit}", columns, rows)


def _systems(pool: KvPool, output_limit: int) -> list[Callable[[], ServingSystem]]:
    known = constant_limit(output_limit)
    return [
        lambda: paged(pool, known),
        lambda: reserve(pool, exact_limit, name="ORCA (Oracle)"),
        lambda: reserve(pool, power_of_two_limit, name="ORCA (Pow2)"),
        lambda: reserve(pool, known, name="ORCA (Max)"),
        lambda: simple_req_manager(pool, known),
        lambda: StaticBatching(pool, known, pool.max_num_seqs),
    ]
