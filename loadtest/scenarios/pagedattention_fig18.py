"""PagedAttention, figure 18: block sizes 1 to 256 on ShareGPT-like and Alpaca-like lengths, under full load.

Small blocks waste nothing but need long tables; large ones have unfilled ends, so fewer sequences run. The small form
shows that on the modelled device, where a block size affects only memory. The full form measures the attention kernels
by block size, on decodes as they occur under full load and on a prompt among them; and the cost of paging (figure 18a),
against torch's attention over contiguous keys and values.
"""

from collections.abc import Sequence

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
KERNEL_BLOCK_SIZES = (1, 16, 64, 256)
WORKLOADS = {"sharegpt": 1024, "alpaca": 512}
SEQUENCES = {"sharegpt": (128, 384), "alpaca": (256, 64)}
"""Number of sequences that decode together, and cached tokens."""

CONTIGUOUS = ((8, 64), (8, 256), (32, 64), (32, 256), (64, 1024), (256, 256))
"""Number of sequences, and cached tokens of each: the paper's points, and larger ones."""

PROMPT_LEN = 1024


def run(stage: Stage) -> Figure:
    """The figure."""
    tables, plots = _under_full_load(stage) if stage.form.models_policies else (_of_kernels(), [])
    return Figure(
        NAME,
        "PagedAttention figure 18: block size",
        f"the offline engine on {stage.policy_device}" if stage.form.models_policies else "the attention kernels",
        tables,
        plots,
        [f"KV memory for {POOL_TOKENS} tokens; all requests at once"] if stage.form.models_policies else [],
    )


def kernel_table(sizes: Sequence[int], prompt_len: int = PROMPT_LEN) -> Table:
    """Microseconds of one layer of the Llama-8B shape, by replays of a CUDA graph; without a GPU, of the references."""
    # Imported here, since torch takes seconds to import and the modelled device does not need it.
    from loadtest.bench.attention_kernels import SHAPES, DecodeWork, PrefillWork

    heads = SHAPES[0]
    rows = []
    for size in sizes:
        decodes = [1e6 * DecodeWork(heads, [length] * n, size).seconds() for n, length in SEQUENCES.values()]
        rows.append([size, *decodes, 1e6 * PrefillWork(heads, [prompt_len], [prompt_len], size).seconds()])
    columns = ["block size", *(f"{n} decodes of {length}, us" for n, length in SEQUENCES.values())]
    return Table(f"{heads.name} heads, one layer", [*columns, f"prompt of {prompt_len}, us"], rows)


def contiguous_table(works: Sequence[tuple[int, int]] = CONTIGUOUS, block_size: int = 16) -> Table:
    """Decodes, paged and contiguous. Contexts are whole blocks, so both read the same bytes."""
    from loadtest.bench.attention_kernels import SHAPES, DecodeWork

    rows = []
    for num, context in works:
        work = DecodeWork(SHAPES[0], [context] * num, block_size)
        paged_us, contiguous_us = 1e6 * work.seconds(), 1e6 * work.contiguous_seconds()
        rows.append([num, context, paged_us, contiguous_us, paged_us / contiguous_us])
    columns = ["decodes", "tokens each", f"paged by {block_size}, us", "contiguous, us", "paged / contiguous"]
    return Table("Paged and contiguous; the paper's kernel: 1.20 to 1.26 x FasterTransformer's", columns, rows)


def _of_kernels() -> list[Table]:
    return [kernel_table(KERNEL_BLOCK_SIZES), contiguous_table()]


def _under_full_load(stage: Stage) -> tuple[list[Table], list[Plot]]:
    rows: dict[str, list[list[float]]] = {workload: [] for workload in WORKLOADS}
    for size in BLOCK_SIZES:
        pool = stage.pool(block_size=size)
        for workload, limit in WORKLOADS.items():
            outcome = replay(paged(pool, constant_limit(limit)), stage.trace(workload, stage.num_requests(1000)))
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
        Curve(workload, BLOCK_SIZES, [row[1] for row in of_workload], index, markers=True)
        for index, (workload, of_workload) in enumerate(rows.items())
    ]
    return (
        [Table(workload, columns, of_workload) for workload, of_workload in rows.items()],
        [Plot(Axes("Output tokens/s by block size", "block size (log)", "tokens/s", log_x=True), curves)],
    )
