"""PagedAttention, figure 17: a chatbot, whose prompts are chat histories of up to 1,024 tokens.

Memory and systems are figure 12's. Prompts are long, so what a system reserves for the answer decides less.
"""

from loadtest.scenarios.figure import Figure
from loadtest.scenarios.pagedattention_fig12 import contenders
from loadtest.scenarios.rate_comparison import compare
from loadtest.scenarios.stage import Stage

NAME = "pagedattention_fig17"
WORKLOAD = "chat-history"
OUTPUT_LIMIT = 1024


def run(stage: Stage) -> Figure:
    """The figure."""
    pool = stage.pool()
    comparison = compare(stage, WORKLOAD, contenders(stage, pool, OUTPUT_LIMIT))
    return Figure(
        NAME,
        "PagedAttention figure 17: a chatbot's sustained rate at equal normalized latency",
        f"the offline engine on {stage.policy_device}",
        [comparison.table],
        [comparison.plot],
        [
            comparison.note,
            f"KV memory for {pool.num_tokens} tokens, {pool.max_num_seqs} sequences at most; no prefix is shared",
            "the paper's: twice the rate of the three ORCAs, which are alike there: its prompts fill what they reserve",
        ],
    )
