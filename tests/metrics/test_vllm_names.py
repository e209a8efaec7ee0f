from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, generate_latest

from service.core.events import Outcome
from service.core.request import FinishReason
from service.core.stats import AdapterUse
from service.metrics.instruments import Instruments
from service.metrics.live_gauges import LiveGauges
from service.metrics.recorder import Recorder
from service.metrics.vllm_names import VllmNames
from tests.metrics.test_live_gauges import BUSY
from tests.metrics.test_recorder import ITERATION, REQUEST

LABELS = {"model_name": "m", "engine": "0"}
EXPECTED = {
    "vllm:num_requests_running": 3,
    "vllm:num_requests_waiting": 2,
    "vllm:kv_cache_usage_perc": 0.25,
    "vllm:num_preemptions_total": 3,
    "vllm:prefix_cache_queries_total": 40,
    "vllm:prefix_cache_hits_total": 32,
    "vllm:prompt_tokens_total": 5,
    "vllm:generation_tokens_total": 3,
    "vllm:iteration_tokens_total_count": 1,
    "vllm:time_to_first_token_seconds_sum": 3.0,
    "vllm:inter_token_latency_seconds_count": 3,
    "vllm:request_time_per_output_token_seconds_sum": 2.0,
    "vllm:e2e_request_latency_seconds_sum": 11.0,
    "vllm:request_queue_time_seconds_sum": 1.0,
    "vllm:request_prefill_time_seconds_sum": 2.0,
    "vllm:request_decode_time_seconds_sum": 8.0,
    "vllm:request_inference_time_seconds_sum": 10.0,
    "vllm:request_prompt_tokens_sum": 10,
    "vllm:request_generation_tokens_sum": 5,
    "vllm:request_max_num_generation_tokens_sum": 5,
    "vllm:request_params_max_tokens_sum": 20,
    "vllm:request_params_n_sum": 1,
    "vllm:request_num_preemptions_count": 1,
    "vllm:admission_rejections_total": 1,
    "vllm:spec_decode_num_drafts_total": 2,
    "vllm:spec_decode_num_draft_tokens_total": 6,
    "vllm:spec_decode_num_accepted_tokens_total": 3,
}


def recorded() -> CollectorRegistry:
    registry = CollectorRegistry()
    instruments = Instruments(registry)
    registry.register(LiveGauges(lambda: BUSY))
    registry.register(VllmNames(instruments, lambda: BUSY, "m"))
    recorder = Recorder(instruments)
    recorder.record_iteration(ITERATION._replace(drafts=((4, 3), (2, 0))))
    for reason in ("overloaded", "invalid_request_error"):
        recorder.record_rejection(reason)
    recorder.record_request(REQUEST, Outcome.FINISHED, (FinishReason.STOP,))
    return registry


def test_shows_the_same_observations() -> None:
    registry = recorded()
    assert {name: registry.get_sample_value(name, LABELS) for name in EXPECTED} == EXPECTED
    by_reason = {"capacity": 2, "deferred": 0}
    name = "vllm:num_requests_waiting_by_reason"
    assert {each: registry.get_sample_value(name, LABELS | {"reason": each}) for each in by_reason} == by_reason
    assert registry.get_sample_value("vllm:request_success_total", LABELS | {"finished_reason": "stop"}) == 1
    sizes = {"block_size": "16", "num_gpu_blocks": "40"}
    assert registry.get_sample_value("vllm:cache_config_info", LABELS | sizes) == 1
    bucket = LABELS | {"le": "5.0"}
    assert registry.get_sample_value("vllm:time_to_first_token_seconds_bucket", bucket) == 1


def test_the_text_has_the_names_as_they_are_scraped() -> None:
    text = generate_latest(recorded()).decode()
    assert "# TYPE vllm:iteration_tokens_total histogram\n" in text
    assert "# TYPE vllm:prompt_tokens_total counter\n" in text
    assert "# TYPE vllm:kv_cache_usage_perc gauge\n" in text


def test_there_are_fewer_than_a_thousand_series() -> None:
    text = generate_latest(recorded()).decode()
    assert sum(not line.startswith("#") for line in text.splitlines()) < 850  # routes add the rest


def test_before_there_is_an_engine() -> None:
    registry = CollectorRegistry()
    registry.register(VllmNames(Instruments(CollectorRegistry()), lambda: None, "m"))
    assert registry.get_sample_value("vllm:num_requests_running", LABELS) == 0


def test_adapters_are_told_where_they_are_served() -> None:
    registry, now = CollectorRegistry(), [BUSY]
    registry.register(VllmNames(Instruments(CollectorRegistry()), lambda: now[0], "m"))
    labels = {"running_lora_adapters": "clerk,poet", "waiting_lora_adapters": "", "max_lora": "4"}
    assert registry.get_sample_value("vllm:lora_requests_info", LABELS | labels) is None
    now[0] = BUSY._replace(adapters=AdapterUse(4, 3, 5, {"poet": 2, "clerk": 1}, {}))
    told_s = registry.get_sample_value("vllm:lora_requests_info", LABELS | labels)
    assert told_s is not None
    assert abs(told_s - time.time()) < 60
