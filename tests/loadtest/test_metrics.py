import json

import numpy as np
import pytest

from loadtest.metrics import (
    LONG_ARRAYS,
    Objectives,
    RunLabels,
    max_concurrent,
    summarize,
    tokens_by_second,
    without_long_arrays,
)
from loadtest.runner import LoadOutcome
from loadtest.stream_record import StreamRecord

LABELS = RunLabels("openai", "stub", "m")
VLLM_KEYS = [
    "date",
    "endpoint_type",
    "backend",
    "label",
    "model_id",
    "tokenizer_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
    "input_lens",
    "output_lens",
    "ttfts",
    "itls",
    "start_times",
    "errors",
]


def _record(i: int, due: float, ttft: float, gaps: list[float], error: str = "") -> StreamRecord:
    times = (due + ttft + np.concatenate([[0.0], np.cumsum(gaps)])).tolist()
    num = len(times)
    return StreamRecord(
        i,
        due,
        due,
        times[-1],
        times,
        [1] * num,
        [],
        10,
        num,
        tokens_from="usage",
        requested_tokens=num,
        error=error,
    )


@pytest.fixture
def outcome() -> LoadOutcome:
    rng = np.random.default_rng(0)
    records = [
        _record(i, 100 + 0.1 * i, rng.uniform(0.01, 0.3), rng.uniform(0.005, 0.02, i % 9).tolist()) for i in range(60)
    ]
    records.append(_record(60, 106.0, 0.1, [0.01], error="timeout: late"))
    return LoadOutcome(records, 100.0, max(record.end_s for record in records) - 100.0)


def test_keys_of_vllm_are_there_and_json_takes_them(outcome: LoadOutcome) -> None:
    result = summarize(outcome, LABELS, percentiles=(50.0, 99.0, 99.9))
    names = [
        f"{kind}_{name}_ms"
        for kind in ("mean", "median", "std", "p50", "p99", "p99.9")
        for name in ("ttft", "tpot", "itl", "e2el")
    ]
    assert not {*VLLM_KEYS, *names} - result.keys()
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_distributions_match_numpy(outcome: LoadOutcome) -> None:
    result = summarize(outcome, LABELS, percentiles=(50.0, 95.0, 99.0))
    good = outcome.records[:-1]
    first = np.array([r.chunk_times[0] - r.scheduled_s for r in good]) * 1e3
    per_token = (
        np.array([(r.end_s - r.chunk_times[0]) / (r.output_tokens - 1) for r in good if r.output_tokens > 1]) * 1e3
    )
    gaps = np.concatenate([np.diff(r.chunk_times) for r in good]) * 1e3
    latency = np.array([r.end_s - r.scheduled_s for r in good]) * 1e3
    for name, values in (("ttft", first), ("tpot", per_token), ("itl", gaps), ("e2el", latency)):
        assert result[f"mean_{name}_ms"] == pytest.approx(values.mean())
        assert result[f"median_{name}_ms"] == pytest.approx(np.median(values))
        assert result[f"std_{name}_ms"] == pytest.approx(values.std())
        for percentile in (50, 95, 99):
            assert result[f"p{percentile}_{name}_ms"] == pytest.approx(np.percentile(values, percentile))
    normalized = latency / [r.output_tokens for r in good]
    assert result["mean_normalized_latency_ms"] == pytest.approx(normalized.mean())
    assert result["median_normalized_latency_ms"] == pytest.approx(np.median(normalized))
    assert result["p99_normalized_latency_ms"] == pytest.approx(np.percentile(normalized, 99))


def test_totals_leave_out_failures_and_name_them(outcome: LoadOutcome) -> None:
    result = summarize(outcome, LABELS)
    tokens = sum(record.output_tokens for record in outcome.records[:-1])
    assert (result["completed"], result["failed"]) == (60, 1)
    assert result["errors_by_kind"] == {"timeout": 1}
    assert result["errors"][-1] == "timeout: late"
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (600, tokens)
    assert result["output_throughput"] == pytest.approx(tokens / outcome.duration_s)
    assert result["total_token_throughput"] == pytest.approx((600 + tokens) / outcome.duration_s)
    assert result["request_throughput"] == pytest.approx(60 / outcome.duration_s)


def test_goodput_counts_requests_within_every_objective(outcome: LoadOutcome) -> None:
    objectives = Objectives.parse(["ttft:150", "tpot:12"])
    met = sum(
        r.chunk_times[0] - r.scheduled_s <= 0.15
        and (r.output_tokens < 2 or (r.end_s - r.chunk_times[0]) / (r.output_tokens - 1) <= 0.012)
        for r in outcome.records[:-1]
    )
    result = summarize(outcome, LABELS, objectives)
    assert 0 < met < 60
    assert result["request_goodput"] == pytest.approx(met / outcome.duration_s)
    assert summarize(outcome, LABELS)["request_goodput"] is None


@pytest.mark.parametrize("pair", ["ttft", "ttft:", "ttft:x", "speed:5", "tpot:-1"])
def test_bad_objective_is_named(pair: str) -> None:
    with pytest.raises(ValueError, match=pair):
        Objectives.parse([pair])


def test_a_run_of_failures_has_nulls_not_zeros() -> None:
    record = StreamRecord(0, 1.0, end_s=2.0, error="timeout: x")
    result = summarize(LoadOutcome([record], 1.0, 1.0), LABELS)
    assert (result["completed"], result["failed"]) == (0, 1)
    assert result["mean_ttft_ms"] is None
    assert result["mean_schedule_lag_ms"] is None
    json.dumps(result, allow_nan=False)


def test_max_concurrent() -> None:
    assert max_concurrent([(0, 2), (1, 3), (2, 4), (5, 6)]) == 2
    assert max_concurrent([]) == 0


def test_tokens_by_second_shares_usage_among_chunks() -> None:
    record = _record(0, 10.0, 0.5, [1.0])
    record.output_tokens = 8
    assert tokens_by_second([record], 10.0, 1.5).tolist() == [4.0, 4.0]
    record.chunk_tokens = [1, 3]
    assert tokens_by_second([record], 10.0, 1.5).tolist() == [2.0, 6.0]


def test_lateness_of_the_client_is_reported() -> None:
    record = _record(0, 10.0, 0.5, [1.0])
    record.sent_s = 10.25
    assert summarize(LoadOutcome([record], 10.0, 2.0), LABELS)["p99_schedule_lag_ms"] == pytest.approx(250)


def test_short_form(outcome: LoadOutcome) -> None:
    short = without_long_arrays(summarize(outcome, LABELS))
    assert not set(LONG_ARRAYS) & short.keys()
    assert short["completed"] == 60
