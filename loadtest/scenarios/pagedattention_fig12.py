"""PagedAttention, figure 12: normalized latency against request rate, on ShareGPT-like and Alpaca-like lengths.

Memory is scarce. The output limit is the workload's longest answer, which ORCA (Max) and SimpleReqManager reserve
because they know no better. ORCA (Oracle) knows each answer's length. Static batching pads and waits.

On a GPU only paged and static batching run, both with overlapping iterations as when serving. SimpleReqManager is in
FineInfer's figure 5, with the same memory and output limit.
"""

import dataclasses

from loadtest.baselines.engine_system import (
    KnownLimit,
    constant_limit,
    exact_limit,
    paged,
    power_of_two_limit,
    reserve,
)
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.simple_req_manager import simple_req_manager
from loadtest.baselines.static_batching import StaticBatching
from loadtest.scenarios.figure import Figure
from loadtest.scenarios.rate_comparison import Contender, compare
from loadtest.scenarios.stage import Stage

NAME = "pagedattention_fig12"
OUTPUT_LIMITS = {"sharegpt": 1024, "alpaca": 512}


def run(stage: Stage) -> Figure:
    """The figure."""
    pool = stage.pool()
    comparisons = [
        compare(stage, workload, contenders(stage, pool, limit))
        for workload, limit in OUTPUT_LIMITS.items()
        # To save GPU minutes: only the lengths in which the systems differ most.
        if stage.form.models_policies or workload == "sharegpt"
    ]
    return Figure(
        NAME,
        "PagedAttention figure 12: sustained rate at equal normalized latency",
        f"the offline engine on {stage.policy_device}",
        [one.table for one in comparisons],
        [one.plot for one in comparisons],
        [
            *(one.note for one in comparisons),
            f"KV memory for {pool.num_tokens} tokens, {pool.max_num_seqs} sequences at most",
            "req/s 0: the latency is exceeded even at the system's lowest rate",
        ],
    )


def contenders(stage: Stage, pool: KvPool, output_limit: int) -> list[Contender]:
    """Ours first. On a GPU only ours and static batching."""
    known = constant_limit(output_limit)
    if not stage.form.models_policies:
        pool = dataclasses.replace(pool, overlap=True)
        return [Contender(lambda: paged(pool, known)), _static_batching(pool, known)]
    return [
        Contender(lambda: paged(pool, known)),
        Contender(lambda: reserve(pool, exact_limit, name="ORCA (Oracle)")),
        Contender(lambda: reserve(pool, power_of_two_limit, name="ORCA (Pow2)")),
        Contender(lambda: reserve(pool, known, name="ORCA (Max)")),
        Contender(lambda: simple_req_manager(pool, known)),
        _static_batching(pool, known),
    ]


def _static_batching(pool: KvPool, known: KnownLimit) -> Contender:
    return Contender(lambda: StaticBatching(pool, known, pool.max_num_seqs), 0.25)
