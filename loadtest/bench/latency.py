"""Decode steps: their time by batch size, and how it grows with the context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from loadtest.bench.device_limits import DeviceLimits
from loadtest.bench.model_limits import ModelCosts
from loadtest.bench.offline_run import OfflineRun, greedy_requests, run_at_once
from loadtest.bench.report import percent, print_table
from service.engine.engine import Engine

_BINS = 16
_WARM_UP_TOKENS = 6


@dataclass(frozen=True, slots=True)
class LatencyRow:
    """Times in milliseconds. prefill: until every sequence has its first token. step: median of the steps in which all
    sequences decode; step and tokens_per_s are None if there were none, because the first sequence ended before the
    last prompt was computed. tpot: mean over the sequences, so it includes the others' prefills. slope: growth of a
    step per token of context added to one sequence; None if there were too few steps.
    """

    batch_size: int
    prefill_ms: float
    step_ms: float | None
    step_limit_ms: float
    tpot_ms: float
    tokens_per_s: float | None
    slope_ms: float | None
    slope_limit_ms: float


def measure_latency(
    engine: Engine,
    costs: ModelCosts,
    limits: DeviceLimits,
    batch_sizes: Sequence[int],
    lengths: tuple[int, int],
    vocab_size: int,
) -> list[LatencyRow]:
    """One row per batch size. lengths: (prompt, output) tokens. Each batch is first run briefly without counting."""
    rows = []
    prompt, output = lengths
    for number, batch_size in enumerate(batch_sizes):
        warm_up = [(prompt, min(output, _WARM_UP_TOKENS))] * batch_size
        run_at_once(engine, greedy_requests(warm_up, vocab_size, 2 * number))
        run = run_at_once(engine, greedy_requests([lengths] * batch_size, vocab_size, 2 * number + 1))
        rows.append(_row(run, batch_size, lengths, costs, limits))
    return rows


def print_latency(rows: Sequence[LatencyRow]) -> None:
    header = [
        "batch",
        "step ms",
        "limit ms",
        "of limit",
        "TPOT ms",
        "tok/s",
        "us per 1k context",
        "limit us",
        "prefill ms",
    ]
    print_table(
        header,
        [
            [
                str(row.batch_size),
                "-" if row.step_ms is None else f"{row.step_ms:.3f}",
                f"{row.step_limit_ms:.3f}",
                "-" if row.step_ms is None else percent(row.step_limit_ms, row.step_ms),
                f"{row.tpot_ms:.3f}",
                "-" if row.tokens_per_s is None else f"{row.tokens_per_s:.0f}",
                "-" if row.slope_ms is None else f"{row.slope_ms * 1e6:.1f}",
                f"{row.slope_limit_ms * 1e6:.1f}",
                f"{row.prefill_ms:.1f}",
            ]
            for row in rows
        ],
    )
    for row in rows:
        if row.step_ms is None:
            print(f"batch {row.batch_size}: in no step did all sequences decode; it takes a larger --output-len")


def latency_json(rows: Sequence[LatencyRow]) -> list[dict[str, object]]:
    """share_of_limit is None where step_ms is None."""
    return [
        {**asdict(row), "share_of_limit": None if row.step_ms is None else row.step_limit_ms / row.step_ms}
        for row in rows
    ]


def _row(
    run: OfflineRun, batch_size: int, lengths: tuple[int, int], costs: ModelCosts, limits: DeviceLimits
) -> LatencyRow:
    prompt, output = lengths
    steps = run.steps_of(batch_size)
    step_s = median(steps) if steps else None
    slope = slope_of(steps)
    return LatencyRow(
        batch_size=batch_size,
        prefill_ms=1e3 * (max(run.first_s.values()) - run.started_s),
        step_ms=None if step_s is None else 1e3 * step_s,
        step_limit_ms=1e3 * costs.decode_step_s(limits, batch_size, prompt + output / 2),
        tpot_ms=1e3 * fmean((run.last_s[i] - run.first_s[i]) / max(1, output - 1) for i in run.first_s),
        tokens_per_s=None if step_s is None else batch_size / step_s,
        slope_ms=None if slope is None else 1e3 * slope / batch_size,
        slope_limit_ms=1e3 * costs.kv_token_s(limits),
    )


def slope_of(steps: Sequence[float]) -> float | None:
    """Growth per step, from a line through the medians of 16 equal parts. None for fewer than 32 steps."""
    size = len(steps) // _BINS
    if size < 2:
        return None
    heights = [median(steps[part * size : (part + 1) * size]) for part in range(_BINS)]
    middle, mean = (_BINS - 1) / 2, fmean(heights)
    covariance = sum((part - middle) * (height - mean) for part, height in enumerate(heights))
    return covariance / sum((part - middle) ** 2 for part in range(_BINS)) / size
