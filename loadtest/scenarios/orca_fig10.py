"""ORCA, figure 10: median normalized latency against throughput, for several max batch sizes.

ORCA (iteration-level scheduling, slots reserved by the request's own limit) against request-level batching, on ORCA's
trace: 32 to 512 tokens in, 1 to 128 out. Memory is not scarce, as in the paper.
"""

from loadtest.scenarios.figure import Figure
from loadtest.scenarios.orca_batching import latency_table, sweep_by_size
from loadtest.scenarios.rate_sweep import latency_plot, requests_note
from loadtest.scenarios.stage import MAX_NUM_SEQS, Stage

NAME = "orca_fig10"
WORKLOAD = "orca"


def run(stage: Stage) -> Figure:
    """The figure."""
    pool = stage.pool(MAX_NUM_SEQS * 640)
    sizes = (8, 32, 128) if stage.form.models_policies else (16, 128)
    sweeps = sweep_by_size(stage, pool, WORKLOAD, sizes, num_batches=3)
    unloaded = min(point.median_normalized_s for one in sweeps for point in one.points)
    best = {kind: max(o.capacity for o in sweeps if o.system.startswith(kind)) for kind in ("orca", "static")}
    return Figure(
        NAME,
        "ORCA figure 10: median normalized latency against throughput",
        f"the offline engine on {stage.policy_device}",
        [latency_table(stage, "Median latency / output tokens", sweeps, lambda p: p.median_normalized_s)],
        [latency_plot("ORCA's trace", sweeps, lambda p: p.median_normalized_s, "median ms/token")],
        [
            f"throughput under full load, orca / static batching: {best['orca'] / best['static']:.2f}",
            requests_note(sweeps),
            f"lowest normalized latency {unloaded * 1e3:.3g} ms; twice that is {2 * unloaded * 1e3:.3g} ms",
        ],
    )
