"""Several systems on one workload: full load, and the rates that they sustain at equal normalized latency.

Shared by PagedAttention's figure 12 and FineInfer's figures 5 to 9. Every system is compared with the first one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.offline.serving_system import ServingSystem
from loadtest.scenarios.figure import Plot, Table
from loadtest.scenarios.rate_sweep import Sweep, latency_plot, requests_note, sweep
from loadtest.scenarios.stage import Stage

LATENCY_FACTORS = (3.0, 10.0)
"""Rates are compared where the mean normalized latency is this many times the lowest of any system."""


@dataclass(frozen=True, slots=True)
class Contender:
    """make: makes a new system. share_of_requests: of the form's number; less for a slow system on a real device."""

    make: Callable[[], ServingSystem]
    share_of_requests: float = 1.0


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of one workload. note: how many requests the figures are based on."""

    table: Table
    plot: Plot
    note: str


def compare(stage: Stage, workload: str, contenders: Sequence[Contender]) -> Comparison:
    """Sweep the systems one after another. On a real device the others than the first only have the highest rate."""
    sweeps: list[Sweep] = []
    for contender in contenders:
        share, rates = 1.0, stage.form.rate_factors
        if not stage.form.models_policies:
            share, rates = contender.share_of_requests, rates if not sweeps else rates[-1:]
        sweeps.append(sweep(stage, contender.make, workload, round(share * stage.form.num_probes), rates))
    plot = latency_plot(workload, sweeps, lambda point: point.mean_normalized_s, "mean ms/token")
    return Comparison(comparison_table(workload, sweeps), plot, requests_note(sweeps))


def comparison_table(workload: str, sweeps: Sequence[Sweep]) -> Table:
    """The first system against each of the others: sequences per iteration, full load, sustained rates."""
    first = sweeps[0]
    least = min(point.mean_normalized_s for one in sweeps for point in one.points)
    limits = [factor * least for factor in LATENCY_FACTORS]
    rows = []
    for one in sweeps:
        figures = [(first.batch_size, one.batch_size), (first.capacity, one.capacity)]
        figures += [(first.sustained_rate(limit), one.sustained_rate(limit)) for limit in limits]
        cells = [cell for ours, theirs in figures for cell in (theirs, ours / theirs if theirs else None)]
        rows.append([one.system, 100 * one.token_state if one.token_state else None, *cells])
    columns = [
        "system",
        "held memory with tokens, %",
        "sequences/iteration",
        "first / this",
        "full load, req/s",
        "first / this",
    ]
    for factor in LATENCY_FACTORS:
        columns += [f"req/s at {factor:g} x lowest", "first / this"]
    return Table(f"{workload}; the lowest mean normalized latency is {least * 1e3:.3g} ms/token", columns, rows)
