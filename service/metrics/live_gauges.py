"""Gauges of the engine's present state, read at scrape time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from service.core.stats import AdapterUse, EngineSnapshot

ReadSnapshot = Callable[[], EngineSnapshot | None]
"""The engine's latest snapshot; None while there is no engine. Called from the thread that scrapes, whichever it is."""

MOST_ADAPTERS = 32
"""Adapters with series of their own; a folder may have many more."""

OTHER_ADAPTERS = "others, together"


class LiveGauges:
    """A Prometheus collector. Without an engine all gauges are 0, so that dashboards see them from the start."""

    def __init__(self, read_snapshot: ReadSnapshot) -> None:
        self._read_snapshot = read_snapshot

    def collect(self) -> Iterator[Metric]:
        now = self._read_snapshot() or EngineSnapshot()
        yield _gauge("headrace_batch_size", "Sequences in the last iteration; 0 when idle.", now.batch_size)
        yield _gauge("headrace_requests_running", "Running requests.", now.num_running)
        yield _gauge("headrace_requests_waiting", "Waiting requests.", now.num_waiting)
        yield _gauge(
            "headrace_requests_swapped", "Waiting requests whose KV blocks are swapped to the host.", now.num_swapped
        )
        yield _gauge("headrace_waiting_tokens", "Tokens that waiting requests have to compute.", now.waiting_tokens)
        yield _gauge(
            "headrace_failed_iterations_in_a_row",
            "Iterations that failed with all their requests, since the last one that gave a request a token.",
            now.num_failed_in_a_row,
        )
        yield _gauge("headrace_kv_blocks_used", "KV blocks in use.", now.used_blocks)
        yield _gauge("headrace_kv_blocks", "KV blocks in total.", now.total_blocks)
        yield _gauge("headrace_kv_blocks_used_ratio", "Share of the KV blocks in use.", kv_usage(now))
        yield _gauge(
            "headrace_training_arena_blocks",
            "KV blocks that a fine-tuning job computes in. Requests can take them, so they do not count as used.",
            now.arena_blocks,
        )
        yield _gauge(
            "headrace_kv_tokens",
            "Tokens in used KV blocks. A shared block counts once; each group of layers counts separately.",
            now.kv_tokens,
        )
        token_ratio = _kv_token_ratio(now)
        yield _gauge(
            "headrace_kv_token_ratio",
            "Share of used KV memory, without that of adapters, that holds tokens; 1 if none is used.",
            token_ratio,
        )
        yield from _adapter_gauges(now.adapters)


def _adapter_gauges(now: AdapterUse) -> Iterator[Metric]:
    yield _gauge("headrace_lora_slots", "LoRA adapters that fit on the device; 0 if none are served.", now.num_slots)
    yield _gauge("headrace_lora_adapters", "LoRA adapters on the device.", now.num_resident)
    yield _gauge("headrace_lora_kv_blocks", "Used KV blocks that hold adapters.", now.num_blocks)
    if now.num_slots:
        yield _by_adapter("running", now.num_running)
        yield _by_adapter("waiting", now.num_waiting)


def _by_adapter(status: str, num_by_adapter: Mapping[str, int]) -> Metric:
    gauge = GaugeMetricFamily(
        f"headrace_lora_requests_{status}", f"{status.capitalize()} requests with a LoRA adapter.", labels=("adapter",)
    )
    shown = Counter(num_by_adapter).most_common(MOST_ADAPTERS)
    num_other = sum(num_by_adapter.values()) - sum(count for _, count in shown)
    for adapter, count in [*shown, (OTHER_ADAPTERS, num_other)]:
        if count:
            gauge.add_metric((adapter,), count)
    return gauge


def kv_usage(snapshot: EngineSnapshot) -> float:
    """The fraction of blocks in use, 0 to 1."""
    return snapshot.used_blocks / snapshot.total_blocks if snapshot.total_blocks else 0.0


def _kv_token_ratio(snapshot: EngineSnapshot) -> float:
    num_places = snapshot.kv_token_blocks * snapshot.block_size
    return snapshot.kv_tokens / num_places if num_places else 1.0


def _gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(name, meaning, value=value)
