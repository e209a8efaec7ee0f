"""FineInfer, section 2.4: deferred continuous batching, latency against training rate for several deferral bounds.

An endless job, and Poisson arrivals of requests with the sizes of FineInfer's public code: 512 tokens in, 32 out. With
bound 0, inference goes first. For comparison, the job goes first: it must be finite then, and all requests wait for it.
"""

import math
from collections.abc import Callable, Sequence

from loadtest.baselines.modelled_training import TOKENS_PER_ITERATION
from loadtest.scenarios.figure import Figure, Plot, Table
from loadtest.scenarios.fineinfer_training import Beside, alone_rate, run_beside, seconds_of, training_pool
from loadtest.scenarios.stage import Stage
from loadtest.svg_plot import Axes, Curve
from service.scheduler.deferred_batching import DeferredBatching

NAME = "fineinfer_deferral"
WORKLOAD = "fixed-512x32"
BOUNDS_S, BOUNDS_ON_A_DEVICE_S = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0), (0.0, 0.1, 0.5, 2.0)
RATES = (0.5, 1.0, 2.0, 4.0, 8.0)
RATES_ON_A_DEVICE = (4.0,)
_JOB_FIRST_SHARE = 0.25
"""Share of a rate's duration that the job would take alone."""


def run(stage: Stage) -> Figure:
    """The figure."""
    pool = training_pool(stage)
    alone = alone_rate(stage, pool)
    is_modelled = stage.form.models_policies
    rates, bounds = (RATES, BOUNDS_S) if is_modelled else (RATES_ON_A_DEVICE, BOUNDS_ON_A_DEVICE_S)
    job_iterations = max(1, round(_JOB_FIRST_SHARE * seconds_of(stage) * alone / TOKENS_PER_ITERATION))
    deferred = {
        bound_s: [run_beside(stage, pool, WORKLOAD, rate, DeferredBatching(bound_s)) for rate in rates]
        for bound_s in bounds
    }
    job_first = [
        run_beside(stage, pool, WORKLOAD, rate, DeferredBatching(math.inf), num_iterations=job_iterations)
        for rate in rates
    ]
    rows = [_row(f"{bound_s:g} s", points, alone) for bound_s, points in deferred.items()]
    rows.append(_row("the job first", job_first, alone))
    columns = ["deferral bound"]
    for rate in rates:
        columns += [f"{rate:g}/s: TTFT p50, ms", "p99", "normalized, ms", "training, % of alone"]
    excess_s = max(
        point.ttft_p99_s - first.ttft_p99_s - bound_s
        for bound_s, points in deferred.items()
        for point, first in zip(points, deferred[0.0], strict=True)
    )
    return Figure(
        NAME,
        "FineInfer: deferred continuous batching beside a fine-tuning job",
        f"the offline engine on {stage.policy_device}",
        [Table(f"{WORKLOAD}; training alone: {alone:,.0f} tokens/s", columns, rows)],
        [
            _plot("TTFT", "TTFT p99, ms", deferred, rates, lambda point: point.ttft_p99_s),
            _plot("normalized latency", "mean ms/token", deferred, rates, lambda point: point.normalized_s),
        ],
        [
            f"each point: {seconds_of(stage):g} s; job first: {job_iterations} iterations, rate during the job",
            f"TTFT p99 exceeds that of bound 0 by at most the bound + {1e3 * excess_s:.3g} ms",
        ],
    )


def _row(name: str, points: Sequence[Beside], alone: float) -> list[object]:
    cells: list[object] = [name]
    for point in points:
        cells += [1e3 * point.ttft_p50_s, 1e3 * point.ttft_p99_s, 1e3 * point.normalized_s]
        cells.append(100 * point.training_rate / alone)
    return cells


def _plot(
    title: str,
    words: str,
    deferred: dict[float, list[Beside]],
    rates: Sequence[float],
    latency: Callable[[Beside], float],
) -> Plot:
    """One curve per request rate, with one point per bound."""
    curves = []
    for index, rate in enumerate(rates):
        points = [of_bound[index] for of_bound in deferred.values()]
        xs, ys = [point.training_rate for point in points], [1e3 * latency(point) for point in points]
        curves.append(Curve(f"{rate:g} requests/s", xs, ys, index, markers=True))
    bounds = ", ".join(f"{bound_s:g}" for bound_s in deferred)
    return Plot(Axes(f"{title}, bounds {bounds} s", "training tokens/s", words), curves)
