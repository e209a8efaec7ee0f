"""LightLLM's TokenAttention: blocks of one token against blocks of 16, under full load.

A table of single tokens has no unfilled end, so all memory held has tokens in it, and a forecast of the peak is exact
to the token. With blocks, the forecast assumes that half of each last block is unfilled. For the cost in the kernels,
see pagedattention_fig18.
"""

from collections.abc import Callable

from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, exact_limit, on_demand
from loadtest.baselines.kv_pool import KvPool
from loadtest.offline.figures_of_merit import mean_batch_size, memory_shares, num_preemptions, output_throughput
from loadtest.offline.replay import replay
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.stage import Stage
from service.scheduler.admission import Admission
from service.scheduler.history import History
from service.scheduler.memory_forecast import ForecastAdmission

NAME = "tokenattention"
BLOCK_SIZES = (1, 16)
WORKLOADS = ("alpaca", "sharegpt")
POOL_TOKENS = {"alpaca": 4_096, "sharegpt": 49_152}
"""So small that memory limits the batch, not the number of sequences."""

ADMISSIONS: dict[str, Callable[[KvPool], Admission]] = {
    "on demand": on_demand,
    "forecast, lengths known": lambda pool: ForecastAdmission(
        History()
    ),  # it never learns of an end, so it expects max_tokens
}


def run(stage: Stage) -> Figure:
    """The figure."""
    return Figure(
        NAME,
        "TokenAttention: block size 1 beside 16",
        f"the offline engine on {stage.policy_device}",
        # To save GPU minutes: only the lengths with which blocks of 16 leave most unfilled.
        [under_full_load(stage, workload) for workload in WORKLOADS[: None if stage.form.models_policies else 1]],
        notes=["all requests at once; each request's max_tokens is its answer's length, which only the forecast uses"],
    )


def under_full_load(stage: Stage, workload: str) -> Table:
    """One row per admission and block size."""
    requests = stage.trace(workload, stage.num_requests(2000))
    rows = []
    for block_size in BLOCK_SIZES:  # on a GPU the model is loaded anew for each
        pool = stage.pool(POOL_TOKENS[workload], block_size)
        for admission, make in ADMISSIONS.items():
            outcome = replay(
                EngineSystem(f"block size {block_size}", pool, EnginePolicies(make(pool), exact_limit)), requests
            )
            shares = memory_shares(outcome)
            rows.append(
                [
                    admission,
                    block_size,
                    100 * shares.token_state,
                    100 * shares.held,
                    mean_batch_size(outcome),
                    output_throughput(outcome),
                    num_preemptions(outcome),
                ]
            )
    columns = ["admission", "block size", "held memory with token state, %", "held, %", "sequences/iteration"]
    return Table(
        f"{workload}, {len(requests)} requests, memory for {POOL_TOKENS[workload]} tokens",
        [*columns, "output tokens/s", "preemptions"],
        rows,
    )
