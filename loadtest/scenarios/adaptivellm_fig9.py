"""AdaptiveLLM, tables 5 and 6 and figure 9: errors of both predictors, and where swapping becomes the cheaper one.

A sequence of each length is computed again, and its blocks are moved out and back, by themselves; the predictors have
been fitted at start-up and have not seen these lengths. Beside it what recomputing adds to an iteration of decodes, as
chunked prefill has it: there it is cheaper than by itself.
"""

from collections.abc import Sequence
from statistics import fmean, median

from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.preemption_judge import (
    fitted_cost,
    recompute_beside_seconds,
    recompute_seconds,
    swap_seconds,
)
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.stage import Stage
from loadtest.svg_plot import Axes, Curve

NAME = "adaptivellm_fig9"
_ROUNDS = 5
_NUM_DECODES = 32


def run(stage: Stage) -> Figure:
    """The figure."""
    block_size = 16
    longest = stage.form.max_model_len
    pool = stage.model_pool(2 * longest, block_size, longest // block_size)
    lengths = [length for length in (24, 48, 96, 200, 400, 700, 1000, 1500, 2000) if length <= longest - block_size]
    with pool.clock.working():
        cost = fitted_cost(pool)
        num_decodes = min(_NUM_DECODES, pool.num_blocks // 2, pool.max_num_seqs - 1)
        measured = _measured(pool, lengths, num_decodes)
    rows = []
    for length in lengths:
        recompute, swap, beside = (median(seconds) for seconds in zip(*measured[length], strict=True))
        costs = cost.predict(length, 0, _num_blocks(pool, length))
        assert costs.recompute_s is not None and costs.swap_s is not None
        rows.append((length, recompute, costs.recompute_s, swap, costs.swap_s, beside))
    errors = [
        [100 * abs(predicted - taken) / taken for taken, predicted in pairs]
        for pairs in ([(row[1], row[2]) for row in rows], [(row[3], row[4]) for row in rows])
    ]
    cells = [
        [
            row[0],
            *(value * 1e3 for value in row[1:]),
            errors[0][i],
            errors[1][i],
            "swap" if row[3] < row[1] else "recompute",
            "swap" if row[3] < row[5] else "recompute",
        ]
        for i, row in enumerate(rows)
    ]
    columns = [
        "tokens", "recompute, ms", "predicted, ms", "swap, ms", "predicted, ms", f"recompute beside {num_decodes}, ms",
        "recompute error, %", "swap error, %", "cheaper", "cheaper beside",
    ]  # fmt: skip
    names = (
        "recompute",
        "recompute, predicted",
        "swap out and in",
        "swap, predicted",
        f"recompute beside {num_decodes} decodes",
    )
    curves = [
        Curve(name, lengths, [row[1 + i] * 1e3 for row in rows], i, markers=i % 2 == 0) for i, name in enumerate(names)
    ]
    return Figure(
        NAME,
        "AdaptiveLLM tables 5 and 6, figure 9: predictor errors; crossover of swap and recompute",
        "the executor, plan by plan",
        [Table(f"Medians of {_ROUNDS}", columns, cells)],
        [Plot(Axes("Cost of a preemption", "tokens (log)", "ms", log_x=True), curves)],
        [
            f"mean absolute percentage error: recompute {fmean(errors[0]):.2g} %, swap {fmean(errors[1]):.2g} %"
            " (the paper's: under 2 % and 4 %)",
            f"by themselves: {_crossover([(row[0], row[1], row[3]) for row in rows])}",
            f"beside {num_decodes} decodes: {_crossover([(row[0], row[5], row[3]) for row in rows])}",
        ],
    )


def _measured(pool: KvPool, lengths: Sequence[int], num_decodes: int) -> dict[int, list[tuple[float, float, float]]]:
    """Of each length, seconds of recomputing, of swapping, and of recomputing beside decodes, in every round but the
    first. All lengths take turns: a GPU's clock wanders by 10 % within tenths of a second."""
    rounds = [
        [
            (
                recompute_seconds(pool, length),
                swap_seconds(pool, _num_blocks(pool, length)),
                recompute_beside_seconds(pool, length, num_decodes),
            )
            for length in lengths
        ]
        for _ in range(_ROUNDS + 1)
    ]
    return {length: [taken[i] for taken in rounds[1:]] for i, length in enumerate(lengths)}


def _num_blocks(pool: KvPool, num_tokens: int) -> int:
    return -(-num_tokens // pool.block_size)


def _crossover(rows: list[tuple[int, float, float]]) -> str:
    """rows: (tokens, seconds of recomputing, of swapping)."""
    cheaper = [length for length, recompute, swap in rows if swap < recompute]
    if not cheaper:
        return "recomputing is the cheaper one at every length measured"
    if len(cheaper) == len(rows):
        return "swapping is the cheaper one at every length measured"
    return f"swapping is the cheaper one at {', '.join(map(str, cheaper))} tokens of those measured"
