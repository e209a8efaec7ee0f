"""ORCA, figure 9: seconds for one batch of equal requests, by batch size; 32 or 128 tokens in, 32 out.

There is no scheduling: the batch is submitted at once and nothing else arrives. The paper compares its engine with
FasterTransformer. We compare with transformers' `generate`, and for some sizes `generate_batch`.
"""

import dataclasses
from collections.abc import Callable
from statistics import median

from loadtest.baselines.engine_system import paged
from loadtest.baselines.transformers_loops import TransformersGenerate, TransformersGenerateBatch, random_model
from loadtest.offline.replay import replay
from loadtest.offline.serving_system import OfflineRequest, ServingSystem
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.stage import Stage
from loadtest.svg_plot import Axes, Curve

NAME = "orca_fig9"
OUTPUT_LEN = 32
PROMPT_LENS = (32, 128)
SIZES, FULL_SIZES = (1, 2, 4, 8, 16, 32), (1, 8, 32, 128)
_ROUNDS = 3
_WARM_UP_LEN = 4


def run(stage: Stage) -> Figure:
    """The figure. Lengths are the paper's in both forms."""
    is_small = stage.form.name == "small"
    sizes = [size for size in (SIZES if is_small else FULL_SIZES) if size <= stage.form.max_num_seqs // 2]
    their_rounds = _ROUNDS if is_small else 1  # on a GPU a batch takes transformers a second
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
            ours.append(_seconds(lambda: paged(pool), batch, _ROUNDS))
            theirs.append(_seconds(lambda: TransformersGenerate(model, pool.clock, 1024), batch, their_rounds))
            batches_them_all = is_small and size == sizes[-1] and index == 0
            continuous = _seconds(lambda: batched, batch, their_rounds) if batches_them_all else None
            times = (ours[-1], theirs[-1], continuous)
            rows.append([prompt_len, size, *(s and s * 1e3 for s in times), theirs[-1] / ours[-1]])
        curves.append(Curve(f"Headrace ({prompt_len})", sizes, [s * 1e3 for s in ours], 2 * index, markers=True))
        curves.append(Curve(f"generate ({prompt_len})", sizes, [s * 1e3 for s in theirs], 2 * index + 1, markers=True))
    columns = ["tokens in", "batch", "Headrace, ms", "generate, ms", "generate_batch, ms", "generate / Headrace"]
    return Figure(
        NAME,
        "ORCA figure 9: execution time of a batch of equal requests, 32 tokens out",
        "the offline engine, transformers in the same process",
        [Table(f"Median of {_ROUNDS} batches (transformers: {their_rounds}), after a short one", columns, rows)],
        [Plot(Axes("Execution time of a batch", "batch size (log)", "ms", log_x=True), curves)],
        ["generate_batch is measured only in the small form, for one batch size"],
    )


def _batch(stage: Stage, prompt_len: int, size: int) -> list[OfflineRequest]:
    ids = tuple(2 + i % (stage.vocab_size - 2) for i in range(prompt_len))
    return [OfflineRequest(i, 0.0, ids, OUTPUT_LEN) for i in range(size)]


def _seconds(make: Callable[[], ServingSystem], batch: list[OfflineRequest], rounds: int) -> float:
    replay(make(), [dataclasses.replace(request, output_len=_WARM_UP_LEN) for request in batch])
    outcomes = [replay(make(), batch) for _ in range(rounds)]
    return median(max(c.latency_s for c in outcome.completions) for outcome in outcomes)
