"""FineInfer end to end, figures 5 to 9: normalized latency against request rate, average batch size under full load.

SimpleReqManager (padded, contiguous, reserves the maximum) against blocks of one token, as in FineInfer's Nopad, and
against our blocks of 16. First with equal memory, then with the report's ratio: Nopad had room for 2.9 times the
tokens, since growing a tensor by concatenation needs the old and the new one at once. (Nopad also had FlashAttention,
SimpleReqManager did not; here both use the same kernels.)

On a GPU all run without overlap, since SimpleReqManager cannot overlap its iterations; PagedAttention's figure 12 has
our engine with overlap, under the same load. The modelled device simulates no host time that could be hidden.
"""

import dataclasses

from loadtest.baselines.engine_system import constant_limit, paged
from loadtest.baselines.simple_req_manager import simple_req_manager
from loadtest.scenarios.figure import Figure
from loadtest.scenarios.rate_comparison import Contender, compare
from loadtest.scenarios.stage import Stage

NAME = "fineinfer_fig5"
OUTPUT_LIMIT = 1024
WORKLOADS = ("sharegpt", "alpaca")
MEMORY_RATIO = 2.9


def run(stage: Stage) -> Figure:
    """The figure."""
    known = constant_limit(OUTPUT_LIMIT)
    blocks = stage.pool()
    concatenated = dataclasses.replace(blocks, num_blocks=int(blocks.num_blocks / MEMORY_RATIO))
    less = f"SimpleReqManager, memory / {MEMORY_RATIO}"
    contenders = [
        Contender(lambda: paged(blocks, known, name="paged (block size 16)")),
        Contender(lambda: simple_req_manager(blocks, known), 0.2),
        Contender(lambda: simple_req_manager(concatenated, known, less), 0.1),
    ]
    if stage.form.models_policies:
        nopad = stage.pool(block_size=1)
        contenders.insert(1, Contender(lambda: paged(nopad, known, name="Nopad (block size 1)")))
    comparisons = [
        compare(stage, workload, contenders)
        for workload in WORKLOADS
        # To save GPU minutes: only the lengths in which the systems differ most, and one block size.
        if stage.form.models_policies or workload == "sharegpt"
    ]
    return Figure(
        NAME,
        "FineInfer figures 5 to 9: normalized latency, average batch size",
        f"the offline engine on {stage.policy_device}",
        [one.table for one in comparisons],
        [one.plot for one in comparisons],
        [
            *(one.note for one in comparisons),
            f"KV memory for {blocks.num_tokens} tokens; output limit {OUTPUT_LIMIT}, which SimpleReqManager reserves",
            "FineInfer, with less memory for SimpleReqManager and slower attention: average batch 4.7 x on ShareGPT,"
            " 4.5 x on Alpaca; sustained rate about 8 x and 13 x",
        ],
    )
