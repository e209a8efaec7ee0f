"""FineInfer and FlexLLM: a fine-tuning job beside a Poisson load, in idle time only or also between iterations.

ORCA's trace. Three cases: no job; a job that runs only when no request does (deferred, bound 0); a job whose layer
steps also run between two iterations, as far as a target for the time between tokens allows (interleaved).
"""

from collections.abc import Callable, Mapping, Sequence

from loadtest.baselines.preemption_judge import fitted_cost
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.fineinfer_training import ENDLESS, Beside, alone_rate, run_beside, seconds_of, training_pool
from loadtest.scenarios.stage import Stage
from loadtest.svg_plot import Axes, Curve
from service.prediction.recovery_ledger import RecoveryLedger
from service.scheduler.chunk_budget import InterTokenTarget
from service.scheduler.deferred_batching import DeferredBatching, TrainingPolicy
from service.scheduler.interleaved_training import InterleavedTraining

NAME = "fineinfer_coserving"
WORKLOAD = "orca"
TARGET_S = 0.02
RATES = (2.0, 5.0, 10.0, 20.0, 30.0)
RATES_ON_A_DEVICE = (10.0, 20.0)


def run(stage: Stage) -> Figure:
    """The figure."""
    pool = training_pool(stage)
    with pool.clock.working():
        cost = fitted_cost(pool)
    alone = alone_rate(stage, pool)
    rates = RATES if stage.form.models_policies else RATES_ON_A_DEVICE
    chunk_budget = InterTokenTarget(cost.iteration_time, TARGET_S, pool.max_num_batched_tokens)

    def sweep(policy: TrainingPolicy, num_iterations: int = ENDLESS) -> list[Beside]:
        return [
            run_beside(
                stage,
                pool,
                WORKLOAD,
                rate,
                policy,
                num_iterations=num_iterations,
                ledger=RecoveryLedger(cost),
                chunk_budget=chunk_budget,
            )
            for rate in rates
        ]

    interleaved = InterleavedTraining(cost.iteration_time, TARGET_S)
    sweeps = {
        "no job": sweep(DeferredBatching(0.0), 0),
        "deferred, bound 0": sweep(DeferredBatching(0.0)),
        f"interleaved, {1e3 * TARGET_S:g} ms": sweep(interleaved),
    }
    columns = ["", *_heads(rates)]
    rows = [[name, *_cells(points, alone)] for name, points in sweeps.items()]
    shares = {name: [100 * point.training_rate / alone for point in points] for name, points in sweeps.items()}
    return Figure(
        NAME,
        "FineInfer and FlexLLM: fine-tuning beside a Poisson load",
        f"the offline engine on {stage.policy_device}",
        [Table(f"{WORKLOAD}; training alone: {alone:,.0f} tokens/s", columns, rows)],
        [
            _plot("training", "% of training alone", rates, shares),
            _plot("TTFT", "TTFT p99, ms", rates, _of(sweeps, lambda point: 1e3 * point.ttft_p99_s)),
            _plot("TPOT", "TPOT p99, ms", rates, _of(sweeps, lambda point: 1e3 * point.tpot_p99_s)),
        ],
        [f"each point: {seconds_of(stage):g} s; in all three, prefill chunks obey the same target between tokens"],
    )


def _heads(rates: Sequence[float]) -> list[str]:
    return [
        head for rate in rates for head in (f"{rate:g}/s: TTFT p50, ms", "p99", "TPOT p99, ms", "training, % of alone")
    ]


def _cells(points: Sequence[Beside], alone: float) -> list[float]:
    cells = []
    for point in points:
        cells += [1e3 * point.ttft_p50_s, 1e3 * point.ttft_p99_s, 1e3 * point.tpot_p99_s]
        cells.append(100 * point.training_rate / alone)
    return cells


def _of(sweeps: Mapping[str, Sequence[Beside]], figure: Callable[[Beside], float]) -> dict[str, list[float]]:
    return {name: [figure(point) for point in points] for name, points in sweeps.items()}


def _plot(title: str, words: str, rates: Sequence[float], lines: Mapping[str, Sequence[float]]) -> Plot:
    curves = [Curve(name, rates, ys, index, markers=True) for index, (name, ys) in enumerate(lines.items())]
    return Plot(Axes(title, "requests/s", words), curves)
