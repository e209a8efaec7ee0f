"""PagedAttention, figure 18: block size 1 to 256 on ShareGPT-like and Alpaca-like lengths, under full load.

Small blocks waste nothing and make long tables; large ones leave unfilled ends, so fewer sequences run.
"""

from loadtest.baselines.engine_system import constant_limit, paged
from loadtest.offline.figures_of_merit import (
    mean_batch_size,
    mean_normalized_latency_s,
    memory_shares,
    output_throughput,
)
from loadtest.offline.replay import replay
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.stage import POOL_TOKENS, Stage
from loadtest.svg_plot import Axes, Curve

NAME = "pagedattention_fig18"
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WORKLOADS = {"sharegpt": 1024, "alpaca": 512}


def run(stage: Stage) -> Figure:
    """The figure. Each block size loads the model anew, so the full form takes every other one."""
    sizes = BLOCK_SIZES if stage.form.models_policies else (1, 16, 64, 256)
    rows: dict[str, list[list[float]]] = {workload: [] for workload in WORKLOADS}
    for size in sizes:
        pool = stage.pool(block_size=size)
        for workload, limit in WORKLOADS.items():
            system = paged(pool, constant_limit(limit))
            outcome = replay(system, stage.trace(workload, stage.num_requests(1000)))
            rows[workload].append(
                [
                    size,
                    output_throughput(outcome),
                    mean_normalized_latency_s(outcome) * 1e3,
                    mean_batch_size(outcome),
                    100 * memory_shares(outcome).token_state,
                ]
            )
    columns = ["block size", "output tokens/s", "normalized, ms/token", "sequences/iteration", "token state, %"]
    curves = [
        Curve(workload, sizes, [row[1] for row in of_workload], index, markers=True)
        for index, (workload, of_workload) in enumerate(rows.items())
    ]
    return Figure(
        NAME,
        "PagedAttention figure 18: block size",
        f"the offline engine on {stage.policy_device}",
        [Table(workload, columns, of_workload) for workload, of_workload in rows.items()],
        [Plot(Axes("Output tokens/s by block size", "block size (log)", "tokens/s", log_x=True), curves)],
        [f"KV memory for {POOL_TOKENS} tokens; all requests at once"],
    )
