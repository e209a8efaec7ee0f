"""`python -m loadtest.metrics_reference`: docs/metrics.md, written from the metrics that the service registers.

A test compares the file with this; after a change of a metric, run it again.
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

`GET /metrics` answers in Prometheus's text format (version 0.0.4). This page is written by
`python -m loadtest.metrics_reference` from the code; a test fails when the two differ. How to scrape, the dashboard and
the alerts: [production.md](production.md).

How to read it:

- A **counter** only grows: use `rate()`. A **gauge** is the value at the moment of the scrape. A **histogram** `x` is
  exported as `x_bucket`, `x_sum` and `x_count`: `histogram_quantile(0.95, sum by (le) (rate(x_bucket[5m])))`.
- Units are in the names: `_seconds`, `_bytes`, `_tokens`; a `_ratio` is a share or a quotient.
- Latencies are of requests that finished. An aborted or failed request is counted in `headrace_requests_total`, and
  its tokens in `headrace_tokens_total`; it is in no histogram of requests.
- Labels never hold a client's text: `route` is the route's template, `reason` one of the service's own codes.
- There are fewer than 1,000 series a server, whatever clients send.
- Series of adapters are there where adapters are served, and those of one adapter while requests with it are.
"""

_NORMALIZED = """\
**Normalized latency** (ORCA, vLLM's paper) is a request's end-to-end seconds divided by its output tokens. **Weighted
turnaround** (AdaptiveLLM) is arrival to end divided by first iteration to end: 1 for a request that did not wait.
**Prefill** and **decode** seconds of a request begin where the phase before them ends, so queue + prefill + decode is
the whole.
"""

_RANKS = """\
Rank 0 is the process that answers here and tells the others what to compute: control messages, and waiting for them,
are the others' alone. Where one rank computes there is `headrace_ranks` alone.
"""

_VLLM = """\
The same observations under the names that vLLM's dashboards, autoscalers and the Kubernetes inference gateway read.
`--metrics-compat none` leaves them out. Every series has the labels `model_name` (the first served
name) and `engine="0"`.
"""

_PROCESS = """\
As every Prometheus client has them; on Linux only.
"""

_SECTIONS = {
    "headrace_batch_size": ("Present state", ""),
    "headrace_ranks": ("Ranks", _RANKS),
    "headrace_iteration_batch_size": ("Iterations", ""),
    "headrace_requests": ("Requests", _NORMALIZED),
    "headrace_http_requests": ("HTTP and process", ""),
    "headrace_storage_bytes": ("Storage and batches", ""),
    "process_virtual_memory_bytes": ("The process", _PROCESS),
    "vllm:num_requests_running": ("vLLM's names", _VLLM),
}
"""Each begins with this metric, in the order of registration, and says this first."""

_OPEN = {
    "route": "the route's template",
    "method": "of HTTP",
    "status": "of HTTP",
    "headrace_batches": "`validating`, `in_progress`, `finalizing`, `cancelling`",
    "headrace_rejections": "an error code",
    "headrace_aborts": "a code",
    "vllm:cache_config_info": "a number",
    "running_lora_adapters": "names, with commas between",
    "waiting_lora_adapters": "likewise",
    "max_lora": "a number",
    "adapter": "its name",
    "model": "the first served name",
    "stage": "from 0, that of the first layers; only with several",
    "rank": "from 0, or from 1 where rank 0 has none",
    "headrace_finetuning_jobs": "of a job",
    "headrace_startup_seconds": "`total` and its parts",
    "headrace_policies": "one a policy: `scheduling`, `admission`, `preemption`, `chunks`, `prefix_cache`, `training`,"
    " `speculation`",
}
"""Labels whose values come with the traffic, or metrics whose labels do: what is said of them instead."""


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
    """What a server registers, with every label seen once."""
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
