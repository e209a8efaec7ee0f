"""FineInfer end to end, figures 5 to 9: normalized latency against request rate, average batch size under full load.

SimpleReqManager (padded, contiguous, the maximum reserved) against blocks of one token, its Nopad design, and ours of
16. The memory is the same for all; FineInfer's Nopad also had 2.9 times more of it, and another attention kernel.
"""

from collections.abc import Callable

from loadtest.baselines.engine_system import constant_limit, paged
from loadtest.baselines.simple_req_manager import simple_req_manager
from loadtest.offline.serving_system import ServingSystem
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.rate_sweep import Sweep, latency_plot, sweep
from loadtest.scenarios.stage import Stage

NAME = "fineinfer_fig5"
OUTPUT_LIMIT = 1024
WORKLOADS = ("sharegpt", "alpaca")
LATENCY_FACTOR = 3.0


def run(stage: Stage) -> Figure:
    """The figure."""
    known = constant_limit(OUTPUT_LIMIT)
    nopad, blocks = stage.pool(block_size=1), stage.pool()
    systems: list[Callable[[], ServingSystem]] = [
        lambda: simple_req_manager(blocks, known),
        lambda: paged(nopad, known, name="Nopad (block size 1)"),
        lambda: paged(blocks, known, name="paged (block size 16)"),
    ]
    tables: list[Table] = []
    plots: list[Plot] = []
    for workload in WORKLOADS:
        sweeps = [sweep(stage, make, workload) for make in systems]
        tables.append(_table(workload, sweeps))
        plots.append(latency_plot(workload, sweeps, lambda point: point.mean_normalized_s, "mean ms/token"))
    return Figure(
        NAME,
        "FineInfer figures 5 to 9: normalized latency, average batch size",
        f"the offline engine on {stage.policy_device}",
        tables,
        plots,
        [
            f"KV memory for {blocks.num_tokens} tokens; output limit {OUTPUT_LIMIT}, which SimpleReqManager reserves",
            "FineInfer's average batch: 4.7x on ShareGPT, 4.5x on Alpaca; sustained rate about 8x and 13x",
        ],
    )


def _table(workload: str, sweeps: list[Sweep]) -> Table:
    least = min(point.mean_normalized_s for one in sweeps for point in one.points)
    rates = [one.sustained_rate(LATENCY_FACTOR * least) for one in sweeps]
    rows = [
        [
            one.system,
            one.batch_size,
            one.batch_size / sweeps[0].batch_size,
            one.capacity,
            rate,
            rate / rates[0] if rates[0] else None,
        ]
        for one, rate in zip(sweeps, rates, strict=True)
    ]
    columns = ["system", "sequences/iteration", "over Simple", "full load, req/s", "sustained, req/s", "over Simple"]
    limit = f"{LATENCY_FACTOR:g} x {least * 1e3:.3g} ms/token"
    return Table(f"{workload}: sustained at a mean normalized latency of {limit}", columns, rows)
