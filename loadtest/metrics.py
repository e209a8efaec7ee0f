"""Turns records into a result: one JSON-ready dict with the keys of vLLM's serving benchmark.

Differences from vLLM's: latencies count from when a request was due, not from when it was sent (in a closed loop these
are the same); token counts are the server's usage; `max_concurrent_requests` is exact, not per whole second;
`start_times` are seconds after the start of the run; a figure without data is null, not 0. Units: `*_ms` milliseconds;
`duration`, `ttfts`, `itls`, `start_times` seconds; throughputs per second. Percentiles are interpolated linearly, as
numpy does; `std` is the population's.
"""

import collections
import datetime
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.runner import LoadOutcome
from loadtest.stream_record import StreamRecord

LONG_ARRAYS = ("input_lens", "output_lens", "ttfts", "itls", "start_times", "end_times", "errors")
DEFAULT_PERCENTILES = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True)
class Objectives:
    """Service-level objectives in milliseconds. None: no objective for this figure."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None

    @classmethod
    def parse(cls, pairs: Iterable[str]) -> "Objectives":
        """Parses strings such as `ttft:200`, `tpot:50`, `e2el:5000`. Raises ValueError that names the bad one."""
        limits: dict[str, float] = {}
        for pair in pairs:
            name, _, value = pair.partition(":")
            if name not in ("ttft", "tpot", "e2el") or not _is_number(value) or float(value) <= 0:
                raise ValueError(f"objective {pair!r}: want ttft:MS, tpot:MS or e2el:MS with MS above 0")
            limits[f"{name}_ms"] = float(value)
        return cls(**limits)

    @property
    def any_set(self) -> bool:
        """Whether any objective is set."""
        return any(limit is not None for limit in (self.ttft_ms, self.tpot_ms, self.e2el_ms))

    def met_by(self, record: StreamRecord) -> bool:
        """Whether a successful request met every objective. A figure that the request does not have counts as met."""
        figures = (
            (record.time_to_first_token_s, self.ttft_ms),
            (record.time_per_output_token_s, self.tpot_ms),
            (record.latency_s, self.e2el_ms),
        )
        return record.succeeded and all(
            value is None or limit is None or value * 1e3 <= limit for value, limit in figures
        )


@dataclass(frozen=True, slots=True)
class RunLabels:
    """Facts about the run that its result repeats."""

    endpoint_type: str
    backend: str
    model_id: str
    label: str | None = None
    tokenizer_id: str | None = None
    workload: str = ""
    arrival: str = ""
    seed: int = 0
    num_processes: int = 1
    request_rate: float = math.inf
    burstiness: float = 1.0
    max_concurrency: int | None = None


def summarize(
    outcome: LoadOutcome,
    labels: RunLabels,
    objectives: Objectives = Objectives(),
    percentiles: Sequence[float] = DEFAULT_PERCENTILES,
) -> dict[str, Any]:
    """The whole result. `without_long_arrays` gives the short form."""
    good = [record for record in outcome.records if record.succeeded]
    return {
        **_labels(labels, len(outcome.records)),
        **_totals(outcome, good, objectives),
        **_latencies(good, percentiles),
        **_normalized(good),
        **_client_health(outcome.records),
        **_long_arrays(outcome),
    }


def without_long_arrays(result: Mapping[str, Any]) -> dict[str, Any]:
    """The result without its per-request arrays."""
    return {name: value for name, value in result.items() if name not in LONG_ARRAYS}


def max_concurrent(intervals: Iterable[tuple[float, float]]) -> int:
    """The most (start, end) intervals that overlap at any time. One that ends when another starts does not overlap
    it.
    """
    steps = sorted(step for start, end in intervals for step in ((start, 1), (end, -1)))
    running = most = 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most


def tokens_by_second(records: Iterable[StreamRecord], start_s: float, duration_s: float) -> NDArray[np.float64]:
    """Output tokens in each whole second after `start_s`. A request's tokens are spread over its chunks by the ids
    that each carried, or else equally.
    """
    counts = np.zeros(int(duration_s) + 1)
    for record in records:
        if not record.chunk_times:
            continue
        seconds = (np.asarray(record.chunk_times) - start_s).astype(np.int64).clip(0, len(counts) - 1)
        weights = np.asarray(record.chunk_tokens, dtype=np.float64)
        np.add.at(counts, seconds, weights * (record.output_tokens / weights.sum()))
    return counts


def _labels(labels: RunLabels, num_prompts: int) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now().strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": labels.endpoint_type,
        "backend": labels.backend,
        "label": labels.label,
        "model_id": labels.model_id,
        "tokenizer_id": labels.tokenizer_id,
        "workload": labels.workload,
        "arrival": labels.arrival,
        "seed": labels.seed,
        "num_client_processes": labels.num_processes,
        "num_prompts": num_prompts,
        "request_rate": labels.request_rate if math.isfinite(labels.request_rate) else "inf",
        "burstiness": labels.burstiness if math.isfinite(labels.burstiness) else "inf",
        "max_concurrency": labels.max_concurrency,
    }


def _totals(outcome: LoadOutcome, good: Sequence[StreamRecord], objectives: Objectives) -> dict[str, Any]:
    duration = outcome.duration_s
    total_input = sum(record.input_tokens for record in good)
    total_output = sum(record.output_tokens for record in good)
    met = sum(objectives.met_by(record) for record in good)
    per_second = tokens_by_second(good, outcome.start_s, duration)
    kinds = collections.Counter(record.error_kind for record in outcome.records if not record.succeeded)
    return {
        "duration": duration,
        "completed": len(good),
        "failed": len(outcome.records) - len(good),
        "errors_by_kind": dict(kinds),
        "total_input_tokens": total_input,
        "total_output_tokens": total_output,
        "total_cached_tokens": sum(record.cached_tokens for record in good),
        "request_throughput": len(good) / duration,
        "request_goodput": met / duration if objectives.any_set else None,
        "output_throughput": total_output / duration,
        "total_token_throughput": (total_input + total_output) / duration,
        "max_output_tokens_per_s": float(per_second.max()),
        "max_concurrent_requests": max_concurrent((r.sent_s, r.end_s) for r in outcome.records if r.sent_s),
    }


def _latencies(good: Sequence[StreamRecord], percentiles: Sequence[float]) -> dict[str, Any]:
    samples = {
        "ttft": [value for record in good if (value := record.time_to_first_token_s) is not None],
        "tpot": [value for record in good if (value := record.time_per_output_token_s) is not None],
        "itl": [gap for record in good for gap in record.inter_token_latencies_s],
        "e2el": [record.latency_s for record in good],
    }
    figures: dict[str, Any] = {}
    for name, seconds in samples.items():
        figures.update(_distribution(name, np.asarray(seconds) * 1e3, percentiles))
    return figures


def _distribution(name: str, values: NDArray[np.float64], percentiles: Sequence[float]) -> dict[str, Any]:
    empty = values.size == 0
    return {
        f"mean_{name}_ms": None if empty else float(values.mean()),
        f"median_{name}_ms": None if empty else float(np.median(values)),
        f"std_{name}_ms": None if empty else float(values.std()),
        **{
            f"p{percentile:g}_{name}_ms": None if empty else float(np.percentile(values, percentile))
            for percentile in percentiles
        },
    }


def _normalized(good: Sequence[StreamRecord]) -> dict[str, Any]:
    values = [value * 1e3 for record in good if (value := record.normalized_latency_s) is not None]
    figures = _distribution("normalized_latency", np.asarray(values), (99.0,))
    return {name: value for name, value in figures.items() if not name.startswith("std_")}


def _client_health(records: Sequence[StreamRecord]) -> dict[str, Any]:
    """How late requests were sent, and how reliable the counts are."""
    lags = np.asarray([record.sent_s - record.scheduled_s for record in records if record.sent_s]) * 1e3
    good = [record for record in records if record.succeeded]
    num_chunks = sum(len(record.chunk_times) for record in good)
    tokens = sum(record.output_tokens for record in good)
    return {
        "mean_schedule_lag_ms": float(lags.mean()) if lags.size else None,
        "p99_schedule_lag_ms": float(np.percentile(lags, 99)) if lags.size else None,
        "max_schedule_lag_ms": float(lags.max()) if lags.size else None,
        "mean_tokens_per_chunk": tokens / num_chunks if num_chunks else None,
        "output_tokens_from": dict(collections.Counter(record.tokens_from for record in good)),
        "num_other_length": sum(record.output_tokens != record.requested_tokens for record in good),
    }


def _long_arrays(outcome: LoadOutcome) -> dict[str, Any]:
    records, start = outcome.records, outcome.start_s
    return {
        "input_lens": [record.input_tokens for record in records],
        "output_lens": [record.output_tokens for record in records],
        "ttfts": [record.time_to_first_token_s for record in records],
        "itls": [record.inter_token_latencies_s for record in records],
        "start_times": [record.scheduled_s - start for record in records],
        "end_times": [record.end_s - start for record in records],
        "errors": [record.error for record in records],
    }


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
