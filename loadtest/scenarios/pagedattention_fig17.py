"""PagedAttention, figure 17: a chatbot, whose prompts are chat histories of up to 1,024 tokens.

Memory and systems are figure 12's; on a GPU only ours and ORCA (Max), both with overlapping iterations. Prompts are
long, so what a system reserves for answers matters less.
"""

import dataclasses

from loadtest.baselines.engine_system import constant_limit, paged, reserve
from loadtest.baselines.kv_pool import KvPool
from loadtest.scenarios.figure import Figure
from loadtest.scenarios.pagedattention_fig12 import contenders
from loadtest.scenarios.rate_comparison import Contender, compare
from loadtest.scenarios.stage import Stage

NAME = "pagedattention_fig17"
WORKLOAD = "chat-history"
OUTPUT_LIMIT = 1024
_SHARE_ON_A_GPU = 0.4
"""Share of the form's requests. About forty run at once."""


def run(stage: Stage) -> Figure:
    """The figure."""
    pool = stage.pool()
    systems = contenders(stage, pool, OUTPUT_LIMIT) if stage.form.models_policies else _on_a_gpu(pool)
    comparison = compare(stage, WORKLOAD, systems)
    return Figure(
        NAME,
        "PagedAttention figure 17: a chatbot's sustained rate at equal normalized latency",
        f"the offline engine on {stage.policy_device}",
        [comparison.table],
        [comparison.plot],
        [
            comparison.note,
            f"KV memory for {pool.num_tokens} tokens, {pool.max_num_seqs} sequences at most; no prefix is shared",
            "the paper: twice the rate of the three ORCAs, which are equal there: its prompts fill what they reserve",
        ],
    )


def _on_a_gpu(pool: KvPool) -> list[Contender]:
    pool, known = dataclasses.replace(pool, overlap=True), constant_limit(OUTPUT_LIMIT)
    return [
        Contender(lambda: paged(pool, known), _SHARE_ON_A_GPU),
        Contender(lambda: reserve(pool, known, name="ORCA (Max)"), _SHARE_ON_A_GPU),
    ]
