"""The same observations under vLLM's names, which its dashboards, autoscalers and gateways read."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from service.core.stats import AdapterUse, EngineSnapshot
from service.metrics.counter_total import counter_total
from service.metrics.instruments import Instruments
from service.metrics.live_gauges import ReadSnapshot, kv_usage
from service.metrics.plain_histogram import PlainHistogram

_ENGINE = "0"


class VllmNames:
    """A Prometheus collector that copies at scrape time; nothing is recorded twice.

    model_name: the first served name, the label that vLLM puts on every series.
    """

    def __init__(self, instruments: Instruments, read_snapshot: ReadSnapshot, model_name: str) -> None:
        self._instruments = instruments
        self._read_snapshot = read_snapshot
        self._labels = {"model_name": model_name, "engine": _ENGINE}
        self._histograms = [source.shown_as(name, self._labels) for name, source in _histograms(instruments).items()]

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges(self._read_snapshot() or EngineSnapshot())
        yield from self._counters()
        yield from [series.metric() for series in self._histograms]

    def _gauges(self, now: EngineSnapshot) -> Iterator[Metric]:
        yield self._gauge("vllm:num_requests_running", "Running requests.", now.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Waiting requests.", now.num_waiting)
        yield self._waiting_by_reason(now)
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 0 to 1.", kv_usage(now))
        sizes = {"block_size": str(now.block_size), "num_gpu_blocks": str(now.total_blocks)}
        yield self._gauge("vllm:cache_config_info", "Sizes of the KV cache.", 1, sizes)
        if now.adapters.num_slots:
            yield self._lora_requests(now.adapters)

    def _lora_requests(self, now: AdapterUse) -> Metric:
        """The value is the time: readers take the newest series."""
        labels = {
            "running_lora_adapters": ",".join(sorted(now.num_running)),
            "waiting_lora_adapters": ",".join(sorted(now.num_waiting)),
            "max_lora": str(now.num_slots),
        }
        meaning = "Unix time. Labels: LoRA adapters of running and of waiting requests, and how many fit on the device."
        return self._gauge("vllm:lora_requests_info", meaning, time.time(), labels)

    def _counters(self) -> Iterator[Metric]:
        of = self._instruments
        computed, generated = counter_total(of.tokens, kind="prompt"), counter_total(of.tokens, kind="generated")
        yield self._counter("vllm:prompt_tokens", "Prompt tokens computed.", computed)
        yield self._counter("vllm:generation_tokens", "Tokens generated.", generated)
        yield self._counter("vllm:num_preemptions", "Preemptions.", counter_total(of.preemptions))
        refused = counter_total(of.rejections, reason="overloaded")
        yield self._counter("vllm:admission_rejections", "Requests rejected because the server is full.", refused)
        queried, hit = counter_total(of.prefix_queried_tokens), counter_total(of.prefix_hit_tokens)
        yield self._counter("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache.", queried)
        yield self._counter("vllm:prefix_cache_hits", "Tokens found in the prefix cache.", hit)
        drafted = counter_total(of.draft_tokens)
        yield self._counter(
            "vllm:spec_decode_num_drafts", "Drafts computed: one per sequence and iteration.", counter_total(of.drafts)
        )
        yield self._counter("vllm:spec_decode_num_draft_tokens", "Draft tokens computed.", drafted)
        accepted = counter_total(of.accepted_draft_tokens)
        yield self._counter("vllm:spec_decode_num_accepted_tokens", "Draft tokens accepted.", accepted)
        yield self._requests_ended()

    def _gauge(self, name: str, meaning: str, value: float, labels: Mapping[str, str] | None = None) -> Metric:
        metric = Metric(name, meaning, "gauge")
        metric.add_sample(name, {**self._labels, **(labels or {})}, value)
        return metric

    def _counter(self, name: str, meaning: str, value: float) -> Metric:
        metric = Metric(name, meaning, "counter")
        metric.add_sample(f"{name}_total", self._labels, value)
        return metric

    def _waiting_by_reason(self, now: EngineSnapshot) -> Metric:
        """vLLM defers requests that wait for a grammar or for KV from elsewhere; here no request is queued before it
        has both."""
        name = "vllm:num_requests_waiting_by_reason"
        metric = Metric(name, "Waiting requests, by reason.", "gauge")
        for reason, value in (("capacity", now.num_waiting), ("deferred", 0)):
            metric.add_sample(name, {**self._labels, "reason": reason}, value)
        return metric

    def _requests_ended(self) -> Metric:
        (original,) = self._instruments.requests.collect()
        metric = Metric("vllm:request_success", "Requests ended, by reason.", "counter")
        for sample in original.samples:
            labels = {**self._labels, "finished_reason": sample.labels["reason"]}
            metric.add_sample("vllm:request_success_total", labels, sample.value)
        return metric


def _histograms(of: Instruments) -> dict[str, PlainHistogram]:
    return {
        "vllm:iteration_tokens_total": of.iteration_tokens,
        "vllm:time_to_first_token_seconds": of.time_to_first_token,
        "vllm:inter_token_latency_seconds": of.inter_token_latency,
        "vllm:request_time_per_output_token_seconds": of.time_per_output_token,
        "vllm:e2e_request_latency_seconds": of.e2e,
        "vllm:request_queue_time_seconds": of.queue,
        "vllm:request_prefill_time_seconds": of.prefill,
        "vllm:request_decode_time_seconds": of.decode,
        "vllm:request_inference_time_seconds": of.inference,
        "vllm:request_prompt_tokens": of.prompt_tokens,
        "vllm:request_generation_tokens": of.output_tokens,
        "vllm:request_max_num_generation_tokens": of.longest_output_tokens,
        "vllm:request_params_max_tokens": of.max_tokens,
        "vllm:request_params_n": of.choices,
        "vllm:request_num_preemptions": of.request_preemptions,
    }
