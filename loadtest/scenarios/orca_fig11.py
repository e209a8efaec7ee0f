"""ORCA, figure 11: median latency against throughput with equal requests, 128 tokens in and 64 out.

Nobody leaves early and nobody is longer, so what remains of ORCA's lead is that a request need not wait for a batch
to end. Latencies are not normalized: all requests are alike.
"""

from loadtest.baselines.engine_system import exact_limit, reserve
from loadtest.baselines.static_batching import StaticBatching
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.rate_sweep import latency_plot, rate_columns, sweep
from loadtest.scenarios.stage import MAX_NUM_SEQS, Stage

NAME = "orca_fig11"
WORKLOAD = "fixed-128x64"
SIZES = (1, 8, 32)


def run(stage: Stage) -> Figure:
    """The figure."""
    pool = stage.pool(MAX_NUM_SEQS * 192)
    sweeps = []
    for size in SIZES:
        makes = (
            lambda size=size: reserve(pool, exact_limit, size, f"orca({size})"),
            lambda size=size: StaticBatching(pool, exact_limit, size),
        )
        sweeps += [sweep(stage, make, WORKLOAD) for make in makes]
    rows = [[one.system, one.capacity, *(point.median_latency_s * 1e3 for point in one.points)] for one in sweeps]
    columns = ["system", "full load, req/s", *rate_columns(stage)]
    return Figure(
        NAME,
        "ORCA figure 11: median latency and throughput, equal requests",
        f"the offline engine on {stage.policy_device}",
        [Table(f"Median latency, {WORKLOAD}", columns, rows)],
        [latency_plot("Equal requests", sweeps, lambda point: point.median_latency_s, "median ms")],
    )
