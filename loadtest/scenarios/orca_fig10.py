"""ORCA, figure 10: median normalized latency against throughput, for several max batch sizes.

ORCA (iteration-level scheduling, slots reserved by the request's own limit) against request-level batches, on ORCA's
trace: 32 to 512 tokens in, 1 to 128 out. Memory is not scarce in it, as it was not in the paper's.
"""

from loadtest.baselines.engine_system import exact_limit, reserve
from loadtest.baselines.static_batching import StaticBatching
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.rate_sweep import Sweep, latency_plot, rate_columns, sweep
from loadtest.scenarios.stage import MAX_NUM_SEQS, Stage

NAME = "orca_fig10"
WORKLOAD = "orca"


def run(stage: Stage) -> Figure:
    """The figure."""
    pool = stage.pool(MAX_NUM_SEQS * 640)
    sweeps = []
    for size in (8, 32, 128) if stage.form.models_policies else (16, 128):
        makes = (
            lambda size=size: reserve(pool, exact_limit, size, f"orca({size})"),
            lambda size=size: StaticBatching(pool, exact_limit, size),
        )
        sweeps += [sweep(stage, make, WORKLOAD, 16 * size) for make in makes]
    return _figure(stage, sweeps)


def _figure(stage: Stage, sweeps: list[Sweep]) -> Figure:
    unloaded = min(point.median_normalized_s for one in sweeps for point in one.points)
    limit = 2 * unloaded
    rows = [[one.system, one.capacity, *(point.median_normalized_s * 1e3 for point in one.points)] for one in sweeps]
    best = {kind: max(o.capacity for o in sweeps if o.system.startswith(kind)) for kind in ("orca", "static")}
    return Figure(
        NAME,
        "ORCA figure 10: median normalized latency against throughput",
        f"the offline engine on {stage.policy_device}",
        [Table("Median latency / output tokens", ["system", "full load, req/s", *rate_columns(stage)], rows)],
        [latency_plot("ORCA's trace", sweeps, lambda p: p.median_normalized_s, "median ms/token")],
        [
            f"throughput under full load, orca over static batching: {best['orca'] / best['static']:.2f}",
            f"the least normalized latency is {unloaded * 1e3:.3g} ms, so twice that is {limit * 1e3:.3g} ms",
        ],
    )
