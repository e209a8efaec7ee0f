"""AdaptiveLLM, tables 5 and 6 and figure 9: errors of both predictors, and the length from which swapping is cheaper.

A sequence of each length is recomputed in an iteration of its own, after iterations of decodes as in real traffic; and
its blocks are swapped out and in while such an iteration runs. The predictors were fitted at start-up and have not seen
these lengths. Also measured: what recomputing adds to an iteration of decodes, as with chunked prefill, where it is
cheaper. Times are by the device's clock if it has one.

The paper fits on four fifths of its timings and tests on the rest; adaptivellm_table3 does the same.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import NamedTuple, Self

from loadtest.baselines.kv_pool import KvPool
from loadtest.baselines.preemption_judge import (
    decode_meanwhile,
    fitted_cost,
    recompute_beside_seconds,
    recompute_seconds,
    swap_seconds,
)
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.stage import Stage
from loadtest.svg_plot import Axes, Curve
from service.prediction.preemption_cost import PreemptionCost, RecoveryCosts
from service.prediction.swap_time import Copies
from service.prediction.workload import Workload

NAME = "adaptivellm_fig9"
_ROUNDS = 5
_NUM_DECODES = 32
_SEED = 0


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
    rows = [_Row.of(cost, pool, length, num_decodes, measured[length]) for length in lengths]
    cells = [
        [
            row.length,
            row.recompute.median_ms,
            row.recompute.predicted_s * 1e3,
            row.swap_s * 1e3,
            row.predicted_swap_s * 1e3,
            row.beside_s * 1e3,
            (row.beside.recompute_s or 0.0) * 1e3,
            (row.beside.swap_s or 0.0) * 1e3,
            row.recompute.error,
            row.swap_error,
            "swap" if row.swap_s < row.recompute.median_s else "recompute",
            row.beside.cheaper.name.lower(),
        ]
        for row in rows
    ]
    columns = [
        "tokens", "recompute, ms", "predicted, ms", "swap, ms", "predicted, ms", f"recompute beside {num_decodes}, ms",
        "predicted, ms", "swap adds, predicted, ms", "recompute error, %", "swap error, %", "cheaper",
        "adaptive beside",
    ]  # fmt: skip
    names = (
        "recompute",
        "recompute, predicted",
        "swap out + in",
        "swap, predicted",
        f"recompute beside {num_decodes} decodes",
    )
    curves = [
        Curve(name, lengths, [float(line[1 + i]) for line in cells], i, markers=i % 2 == 0)
        for i, name in enumerate(names)
    ]
    by_themselves = [(row.length, row.recompute.median_s, row.swap_s) for row in rows]
    return Figure(
        NAME,
        "AdaptiveLLM tables 5 and 6, figure 9: predictor errors; crossover of swap and recompute",
        "the executor, plan by plan",
        [Table(f"Medians of {_ROUNDS}", columns, cells)],
        [Plot(Axes("Cost of a preemption", "tokens (log)", "ms", log_x=True), curves)],
        [
            "mean absolute percentage error against the medians:"
            f" recompute {fmean(row.recompute.error for row in rows):.2g} %,"
            f" swap {fmean(row.swap_error for row in rows):.2g} % (paper: under 2 % and 4 %)",
            "against single measurements:"
            f" recompute {fmean(row.recompute.error_of_singles for row in rows):.2g} %,"
            f" swap out {fmean(row.swap_out.error_of_singles for row in rows):.2g} %,"
            f" in {fmean(row.swap_in.error_of_singles for row in rows):.2g} %"
            " (paper: out 1.0 to 1.2 %, in 1.1 to 1.5 %)",
            "mean deviation of a measurement from the median of its repetitions:"
            f" {fmean(row.recompute.scatter for row in rows):.2g} % (recompute),"
            f" {fmean(row.swap_out.scatter for row in rows):.2g} % (out),"
            f" {fmean(row.swap_in.scatter for row in rows):.2g} % (in)",
            f"alone: {_crossover(by_themselves)}",
            f"beside {num_decodes} decodes: {_crossover([(row.length, row.beside_s, row.swap_s) for row in rows])}",
        ],
    )


class _Round(NamedTuple):
    """Seconds of one round: to recompute the sequence alone, to swap it out and in, and to recompute it beside
    decodes."""

    recompute_s: float
    out_s: float
    in_s: float
    beside_s: float


@dataclass(frozen=True, slots=True)
class _Repeated:
    """One prediction and several measurements of the same thing. Errors are in percent of the measured value."""

    predicted_s: float
    measured_s: Sequence[float]

    @property
    def median_s(self) -> float:
        return median(self.measured_s)

    @property
    def median_ms(self) -> float:
        return self.median_s * 1e3

    @property
    def error(self) -> float:
        """Error of the prediction against the median."""
        return _error(self.predicted_s, self.median_s)

    @property
    def error_of_singles(self) -> float:
        """Mean error of the prediction against the single measurements."""
        return fmean(_error(self.predicted_s, seconds) for seconds in self.measured_s)

    @property
    def scatter(self) -> float:
        """Mean error of the median against the single measurements: no single prediction can do much better."""
        return fmean(_error(self.median_s, seconds) for seconds in self.measured_s)


@dataclass(frozen=True, slots=True)
class _Row:
    """One length. beside_s: median of what recomputing adds to decodes. beside: the costs predicted for that."""

    length: int
    recompute: _Repeated
    swap_out: _Repeated
    swap_in: _Repeated
    beside_s: float
    beside: RecoveryCosts

    @classmethod
    def of(cls, cost: PreemptionCost, pool: KvPool, length: int, num_decodes: int, rounds: Sequence[_Round]) -> Self:
        num_blocks = _num_blocks(pool, length)
        alone, beside = (
            cost.predict(length, 0, num_blocks, Workload.of_decodes(count, count * pool.block_size))
            for count in (0, num_decodes)
        )
        ways = [cost.swap_time.predicted_s(Copies(to_host, num_blocks)) for to_host in (True, False)]
        assert alone.recompute_s is not None and ways[0] is not None and ways[1] is not None
        return cls(
            length,
            _Repeated(alone.recompute_s, [taken.recompute_s for taken in rounds]),
            _Repeated(ways[0], [taken.out_s for taken in rounds]),
            _Repeated(ways[1], [taken.in_s for taken in rounds]),
            median(taken.beside_s for taken in rounds),
            beside,
        )

    @property
    def swap_s(self) -> float:
        """Out and in together, from the medians."""
        return self.swap_out.median_s + self.swap_in.median_s

    @property
    def predicted_swap_s(self) -> float:
        return self.swap_out.predicted_s + self.swap_in.predicted_s

    @property
    def swap_error(self) -> float:
        return _error(self.predicted_swap_s, self.swap_s)


def _error(predicted_s: float, measured_s: float) -> float:
    return 100 * abs(predicted_s - measured_s) / measured_s


def _measured(pool: KvPool, lengths: Sequence[int], num_decodes: int) -> dict[int, list[_Round]]:
    """All rounds of each length but the first. In each round the lengths take turns in another order; each is
    recomputed after some iterations of decodes."""
    measured: dict[int, list[_Round]] = {length: [] for length in lengths}
    shuffled = random.Random(_SEED)
    for _ in range(_ROUNDS + 1):
        for length in shuffled.sample(lengths, len(lengths)):
            decode_meanwhile(pool, num_decodes)
            measured[length].append(
                _Round(
                    recompute_seconds(pool, length),
                    *swap_seconds(pool, _num_blocks(pool, length), num_decodes),
                    recompute_beside_seconds(pool, length, num_decodes),
                )
            )
    return {length: rounds[1:] for length, rounds in measured.items()}


def _num_blocks(pool: KvPool, num_tokens: int) -> int:
    return -(-num_tokens // pool.block_size)


def _crossover(rows: list[tuple[int, float, float]]) -> str:
    """rows: (tokens, seconds to recompute, seconds to swap)."""
    cheaper = [length for length, recompute, swap in rows if swap < recompute]
    if not cheaper:
        return "recomputing is cheaper at every length measured"
    if len(cheaper) == len(rows):
        return "swapping is cheaper at every length measured"
    return f"of the lengths measured, swapping is cheaper at {', '.join(map(str, cheaper))} tokens"
