"""PagedAttention, figures 2 and 13: what KV memory is used for, and how many sequences run, under full load.

Of the memory that a system holds, how much has a token's state in it? The rest is the unfilled end of a block (paged),
or is reserved for tokens that may never come (the others).
"""

from loadtest.baselines.engine_system import constant_limit, exact_limit, paged, power_of_two_limit, reserve
from loadtest.baselines.simple_req_manager import simple_req_manager
from loadtest.offline.figures_of_merit import mean_batch_size, memory_shares
from loadtest.offline.replay import replay
from loadtest.scenarios.figure import Figure, Table
from loadtest.scenarios.stage import Stage

NAME = "pagedattention_fig2"
OUTPUT_LIMITS = {"sharegpt": 1024, "alpaca": 512}


def run(stage: Stage) -> Figure:
    """The figure."""
    block_size = 16
    pool = stage.pool(block_size=block_size)
    tables = []
    for workload, output_limit in OUTPUT_LIMITS.items():
        if workload == "sharegpt" and not stage.form.models_policies:
            continue  # saves GPU minutes: only policies decide this
        requests = stage.trace(workload, stage.num_requests(2000))
        known = constant_limit(output_limit)
        systems = [
            paged(pool, known, name=f"paged, block size {block_size}"),
            reserve(pool, exact_limit, name="ORCA (Oracle)"),
            reserve(pool, power_of_two_limit, name="ORCA (Pow2)"),
            reserve(pool, known, name="ORCA (Max)"),
            simple_req_manager(pool, known),
        ]
        outcomes = [replay(system, requests) for system in systems]
        ours = mean_batch_size(outcomes[0])
        rows = []
        for outcome in outcomes:
            shares = memory_shares(outcome)
            batch = mean_batch_size(outcome)
            rows.append([outcome.system, 100 * shares.token_state, 100 * shares.held, batch, ours / batch])
        columns = ["system", "held memory with token state, %", "held, %", "sequences/iteration", "paged / this"]
        tables.append(Table(f"{workload}, {len(requests)} requests", columns, rows))
    return Figure(
        NAME,
        "PagedAttention figures 2 and 13: share of KV memory that holds tokens, average number of batched requests",
        f"the offline engine on {stage.policy_device}",
        tables,
        notes=[
            f"KV memory for {pool.num_tokens} tokens, {pool.max_num_seqs} sequences at most; all requests at once",
            "all requests wait from the start, so only the policies matter: every device gives the same figures",
        ],
    )
