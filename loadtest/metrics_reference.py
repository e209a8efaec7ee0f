"""`python -m loadtest.metrics_reference` writes docs/metrics.md from the metrics that the service registers.

A test compares the file with the code: run this again after changing a metric.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from service.core.stats import AdapterUse, EngineSnapshot, RankFacts
from service.metrics.host_seconds import HostSeconds
from service.metrics.instruments import Instruments
from service.metrics.live_gauges import LiveGauges
from service.metrics.log_loss import LogLoss
from service.metrics.process_state import ProcessState
from service.metrics.rank_metrics import RankMetrics
from service.metrics.recorder import Recorder
from service.metrics.stored_state import StoredState, StoredStateGauges
from service.metrics.vllm_names import VllmNames

REFERENCE = Path(__file__).parents[1] / "docs" / "metrics.md"

_HEAD = """\
# Metrics reference

`GET /metrics` returns all metrics in Prometheus's text format (version 0.0.4). [production.md](production.md) explains
scraping, dashboards and alerts. `python -m loadtest.metrics_reference` generates this page from the code; a test fails
if they differ.

- A **counter** only grows: use `rate()`. A **gauge** is the value at the moment of the scrape. A **histogram** `x` is
  exported as `x_bucket`, `x_sum` and `x_count`: `histogram_quantile(0.95, sum by (le) (rate(x_bucket[5m])))`.
- Names end with their unit: `_seconds`, `_bytes`, `_tokens`. A `_ratio` is a share or a quotient.
- Latency histograms cover finished requests only. An aborted or failed request counts in `headrace_requests_total`, and
  its tokens in `headrace_tokens_total`.
- Labels never contain a client's text: `route` is the route's template, `reason` one of the server's own codes.
- A server has fewer than 1,000 series, whatever clients send.
- Series of adapters exist only if adapters are served; those of one adapter only while it has requests.
"""

_NORMALIZED = """\
**Normalized latency** (ORCA, vLLM's paper) is a request's end-to-end seconds divided by its output tokens. **Weighted
turnaround** (AdaptiveLLM) is (arrival to end) / (first iteration to end): 1 for a request that did not wait.
The phases of a request follow each other without gaps: queue + prefill + decode = end-to-end seconds.
"""

_RANKS = """\
Rank 0 is the process that serves `/metrics` and sends plans to the other ranks, so only the others receive control
messages and wait for them. With a single rank, only `headrace_ranks` is exported.
"""

_VLLM = """\
The same observations under vLLM's names, for its dashboards, for autoscalers and for the Kubernetes inference gateway.
`--metrics-compat none` omits them. Every series has the labels `model_name` (the first served name) and `engine="0"`.
"""

_PROCESS = """\
The standard metrics of Prometheus clients; on Linux only.
"""

_SECTIONS = {
    "headrace_batch_size": ("Current state", ""),
    "headrace_ranks": ("Ranks", _RANKS),
    "headrace_iteration_batch_size": ("Iterations", ""),
    "headrace_requests": ("Requests", _NORMALIZED),
    "headrace_http_requests": ("HTTP and process", ""),
    "headrace_storage_bytes": ("Storage and batches", ""),
    "process_virtual_memory_bytes": ("The process", _PROCESS),
    "vllm:num_requests_running": ("vLLM's names", _VLLM),
}
"""Sections of the page, in the order of registration: the metric that begins each, its heading, and its first text."""

_OPEN = {
    "route": "the route's template",
    "method": "HTTP method",
    "status": "HTTP status",
    "headrace_batches": "`validating`, `in_progress`, `finalizing`, `cancelling`",
    "headrace_rejections": "an error code",
    "headrace_aborts": "a code",
    "vllm:cache_config_info": "a number",
    "running_lora_adapters": "comma-separated names",
    "waiting_lora_adapters": "comma-separated names",
    "max_lora": "a number",
    "adapter": "name",
    "model": "the first served name",
    "stage": "from 0, the stage of the first layers; only with several stages",
    "rank": "from 0, or from 1 if rank 0 has none",
    "headrace_finetuning_jobs": "status of a job",
    "headrace_startup_seconds": "`total`, and each phase",
    "headrace_policies": "one per policy: `scheduling`, `admission`, `preemption`, `chunks`, `prefix_cache`,"
    " `training`, `speculation`",
}
"""Labels whose values depend on traffic, and metrics whose labels do: the text shown instead of values."""


def write_reference() -> str:
    """The page's text."""
    lines = [_HEAD]
    for metric in _metrics():
        if metric.name in _SECTIONS:
            heading, text = _SECTIONS[metric.name]
            lines += ["", f"## {heading}", "", *([text] if text else [])]
            lines += ["| name | type | labels | meaning |", "|---|---|---|---|"]
        lines.append(_row(metric))
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _metrics() -> Iterator[Metric]:
    """What a server registers, with every label value seen once."""
    registry = CollectorRegistry()
    serves_adapters = EngineSnapshot(adapters=AdapterUse(1, 1, 1, {"": 1}, {"": 1}))
    registry.register(LiveGauges(lambda: serves_adapters))
    registry.register(RankMetrics(lambda: [RankFacts(rank, *(0,) * 7, stage=1 - rank) for rank in (0, 1)]))
    instruments = Instruments(registry)
    recorder = Recorder(instruments)
    recorder.record_http("", "", 200, 0.0)
    recorder.record_rejection("")
    recorder.record_abort("")
    recorder.record_startup("", 0.0)
    recorder.record_jobs({"": 0})
    for predictor in ("iteration", "recompute", "swap", "training"):
        instruments.prediction_error.labels(predictor)
        instruments.predicted_seconds.labels(predictor)
        instruments.actual_seconds.labels(predictor)
    registry.register(HostSeconds(recorder.times))
    registry.register(LogLoss(lambda: 0))
    registry.register(StoredStateGauges(lambda: StoredState(0, 0, {}, 0, 0, {})))
    registry.register(ProcessState())
    registry.register(VllmNames(instruments, lambda: serves_adapters, ""))
    return iter(registry.collect())


def _row(metric: Metric) -> str:
    name = metric.name + {"counter": "_total", "info": "_info"}.get(metric.type, "")
    meaning = metric.documentation.replace("|", "\\|")
    if metric.type == "histogram":
        bounds = sorted({float(sample.labels["le"]) for sample in metric.samples if "le" in sample.labels})[:-1]
        meaning += f" Buckets: {len(bounds)}, {bounds[0]:g} to {bounds[-1]:g}."
    return f"| `{name}` | {metric.type} | {_labels(metric)} | {meaning} |"


def _labels(metric: Metric) -> str:
    if metric.name in _OPEN and metric.type == "info":
        return _OPEN[metric.name]
    values: dict[str, list[str]] = {}
    for sample in metric.samples:
        for label, value in sample.labels.items():
            if label not in ("le", "model_name", "engine") and value not in values.setdefault(label, []):
                values[label].append(value)
    return "; ".join(f"`{label}`: {_values(metric, label, found)}" for label, found in values.items())


def _values(metric: Metric, label: str, found: list[str]) -> str:
    return _OPEN.get(metric.name) or _OPEN.get(label) or ", ".join(f"`{value}`" for value in found)


if __name__ == "__main__":
    REFERENCE.write_text(write_reference(), encoding="utf-8")
    sys.stdout.write(f"{REFERENCE} is written\n")
