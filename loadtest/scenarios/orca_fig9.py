"""ORCA, figure 9: seconds for one batch of equal requests, by batch size; 32 or 128 tokens in, 32 out.

Nothing is scheduled: the batch is submitted at once and nothing else arrives. The paper compares its engine with
FasterTransformer; the other side here is transformers' `generate`, and for some sizes `generate_batch`.
"""

from collections.abc import Callable
from statistics import median

from loadtest.baselines.engine_system import paged
from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.transformers_loops import TransformersGenerate, TransformersGenerateBatch, random_model
from loadtest.offline.replay import replay
from loadtest.offline.serving_system import OfflineRequest, ServingSystem
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.stage import Stage
from loadtest.svg_plot import Axes, Curve

NAME = "orca_fig9"
OUTPUT_LEN = 32
PROMPT_LENS = (32, 128)
_ROUNDS = 3


def run(stage: Stage) -> Figure:
    """The figure. Lengths are the paper's in both forms."""
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128) if size <= stage.form.max_num_seqs // 2]
    pool = stage.model_pool(max(PROMPT_LENS) * 2 * sizes[-1])
    model = random_model(stage.form.shape, stage.form.dtype, stage.torch_device)
    batched = TransformersGenerateBatch(model, pool.clock, 2 * sizes[-1])
    rows: list[list[object]] = []
    curves = []
    for index, prompt_len in enumerate(PROMPT_LENS):
        ours: list[float] = []
        theirs: list[float] = []
        for size in sizes:
            batch = _batch(stage, prompt_len, size)
            ours.append(_seconds(pool, lambda: paged(pool), batch))
            theirs.append(_seconds(pool, lambda: TransformersGenerate(model, pool.clock, 1024), batch))
            continuous = _seconds(pool, lambda: batched, batch) if size == sizes[-1] and index == 0 else None
            times = (ours[-1], theirs[-1], continuous)
            rows.append([prompt_len, size, *(s and s * 1e3 for s in times), theirs[-1] / ours[-1]])
        curves.append(Curve(f"Headrace ({prompt_len})", sizes, [s * 1e3 for s in ours], 2 * index, markers=True))
        curves.append(Curve(f"generate ({prompt_len})", sizes, [s * 1e3 for s in theirs], 2 * index + 1, markers=True))
    columns = ["tokens in", "batch", "Headrace, ms", "generate, ms", "generate_batch, ms", "generate / Headrace"]
    return Figure(
        NAME,
        "ORCA figure 9: execution time of a batch of equal requests, 32 tokens out",
        "the offline engine, transformers in the same process",
        [Table(f"Median of {_ROUNDS} batches", columns, rows)],
        [Plot(Axes("Execution time of a batch", "batch size (log)", "ms", log_x=True), curves)],
        ["generate_batch is measured for one batch only"],
    )


def _batch(stage: Stage, prompt_len: int, size: int) -> list[OfflineRequest]:
    ids = tuple(2 + i % (stage.vocab_size - 2) for i in range(prompt_len))
    return [OfflineRequest(i, 0.0, ids, OUTPUT_LEN) for i in range(size)]


def _seconds(pool: KvPool, make: Callable[[], ServingSystem], batch: list[OfflineRequest]) -> float:
    outcomes = [replay(make(), batch) for _ in range(_ROUNDS + 1)][1:]
    return median(max(c.latency_s for c in outcome.completions) for outcome in outcomes)
