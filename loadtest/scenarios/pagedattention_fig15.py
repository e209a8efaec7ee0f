"""PagedAttention, figures 14 and 15: parallel sampling with n answers per request, and what sharing saves.

Saved: blocks in tables that need no memory, because another table has the same block. For comparison, the same answers
as n separate requests without sharing, as in a system without copy-on-write. On a GPU both overlap their iterations, as
when serving.
"""

import dataclasses

from loadtest.baselines.engine_system import EnginePolicies, EngineSystem, constant_limit, on_demand
from loadtest.offline.figures_of_merit import mean_batch_size, memory_shares, output_throughput
from loadtest.offline.replay import replay
from loadtest.offline.serving_system import OfflineRequest
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.stage import Stage

NAME = "pagedattention_fig15"
NUM_ANSWERS = (2, 4, 6)
BEAM_WIDTHS = (2, 4, 6)
WORKLOADS = {"alpaca": 512, "sharegpt": 1024}


def run(stage: Stage) -> Figure:
    """The figure."""
    block_size = 16
    pool = dataclasses.replace(stage.pool(block_size=block_size), overlap=not stage.form.models_policies)
    tables = []
    for workload, limit in WORKLOADS.items():
        if workload == "sharegpt" and not stage.form.models_policies:
            continue  # saves three GPU minutes
        rows = []
        single = stage.trace(workload, stage.num_requests(1000 if stage.form.models_policies else 500))
        for n in NUM_ANSWERS:
            policies = EnginePolicies(on_demand(pool), constant_limit(limit), temperature=1.0)
            shared = replay(
                EngineSystem("shared", pool, policies),
                [dataclasses.replace(request, n=n) for request in single],
            )
            apart = replay(EngineSystem("apart", pool, policies), _as_requests(single, n))
            rates = output_throughput(shared), output_throughput(apart)
            rows.append([n, 100 * memory_shares(shared).saved, *rates, rates[0] / rates[1]])
        columns = ["n", "saved by sharing, %", "shared, tokens/s", "apart, tokens/s", "shared / apart"]
        tables.append(Table(f"{workload}, parallel sampling, {len(single)} requests", columns, rows))
    tables.append(_beams(stage))
    return Figure(
        NAME,
        "PagedAttention figures 14 and 15: memory saved by sharing, parallel sampling and beam search",
        f"the offline engine, parallel sampling on {stage.policy_device}, beam search with the measured model",
        tables,
        notes=[
            "the paper's savings on Alpaca: 6.1 % to 9.8 % (parallel sampling), 37.6 % to 55.2 % (beam search)",
            "which beams survive depends on the model: random weights give flatter distributions than trained ones",
            f"block size {block_size}, KV memory for {pool.num_tokens} tokens",
        ],
    )


def _beams(stage: Stage) -> Table:
    """Uses the model, since its output decides how beams branch."""
    pool = stage.model_pool(stage.form.max_num_seqs * 128)
    requests = stage.cut_trace("alpaca", stage.num_requests(100), 128, 128)
    rows = []
    for width in BEAM_WIDTHS:
        of_width = [dataclasses.replace(request, beam_width=width) for request in requests]
        outcome = replay(EngineSystem("beams", pool, EnginePolicies(on_demand(pool))), of_width)
        rows.append([width, 100 * memory_shares(outcome).saved, mean_batch_size(outcome)])
    columns = ["width", "saved by sharing, %", "sequences/iteration"]
    return Table(f"alpaca, beam search, {len(requests)} requests", columns, rows)


def _as_requests(requests: list[OfflineRequest], n: int) -> list[OfflineRequest]:
    return [
        dataclasses.replace(request, request_id=request.request_id * n + choice)
        for request in requests
        for choice in range(n)
    ]
