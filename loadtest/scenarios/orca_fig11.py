"""ORCA, figure 11: median latency against throughput with equal requests, 128 tokens in and 64 out.

All requests have the same length and end together, so what remains of ORCA's lead is that a request need not wait for a
batch to end. Latencies are not normalized, since requests are equal.
"""

from loadtest.scenarios.figure import Figure
from loadtest.scenarios.orca_batching import latency_table, sweep_by_size
from loadtest.scenarios.rate_sweep import latency_plot, requests_note
from loadtest.scenarios.stage import MAX_NUM_SEQS, Stage

NAME = "orca_fig11"
WORKLOAD = "fixed-128x64"
SIZES, FULL_SIZES = (1, 8, 32), (32,)


def run(stage: Stage) -> Figure:
    """The figure."""
    sizes = SIZES if stage.form.models_policies else FULL_SIZES
    pool = stage.pool(MAX_NUM_SEQS * 192)
    # Equal requests end together, in ORCA's batch too: with few batches, one more or less would distort the rate.
    sweeps = sweep_by_size(stage, pool, WORKLOAD, sizes, num_batches=8)
    return Figure(
        NAME,
        "ORCA figure 11: median latency and throughput, equal requests",
        f"the offline engine on {stage.policy_device}",
        [latency_table(stage, f"Median latency, {WORKLOAD}", sweeps, lambda point: point.median_latency_s)],
        [latency_plot("Equal requests", sweeps, lambda point: point.median_latency_s, "median ms")],
        [requests_note(sweeps)],
    )
