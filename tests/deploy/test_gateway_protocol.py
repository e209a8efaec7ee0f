"""The metrics of the Gateway API inference extension's model-server protocol, read as its endpoint picker reads them.

The protocol is proposal 003 of kubernetes-sigs/gateway-api-inference-extension; llm-d's picker reads the names of its
engine `vllm`. docs/production.md tells which versions.
"""

from __future__ import annotations

import time

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from service.core.stats import AdapterUse, EngineSnapshot
from service.metrics.instruments import Instruments
from service.metrics.vllm_names import VllmNames

BUSY = EngineSnapshot()._replace(
    num_running=3,
    num_waiting=5,
    used_blocks=30,
    total_blocks=40,
    block_size=16,
    adapters=AdapterUse(4, 2, 0, {"poet": 2}, {"clerk": 1, "scribe": 1}),
)
GAUGES = {"vllm:num_requests_waiting": 5, "vllm:num_requests_running": 3, "vllm:kv_cache_usage_perc": 0.75}


@pytest.fixture(scope="module")
def families() -> dict[str, Metric]:
    registry = CollectorRegistry()
    registry.register(VllmNames(Instruments(CollectorRegistry()), lambda: BUSY, "m"))
    text = generate_latest(registry).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.mark.parametrize(("name", "value"), GAUGES.items())
def test_load_is_a_gauge_with_one_value(families: dict[str, Metric], name: str, value: float):
    (sample,) = families[name].samples
    assert (families[name].type, sample.name, sample.value) == ("gauge", name, value)


def test_the_cache_tells_its_sizes_in_labels(families: dict[str, Metric]):
    (sample,) = families["vllm:cache_config_info"].samples
    assert families["vllm:cache_config_info"].type == "gauge"
    assert (int(sample.labels["block_size"]), int(sample.labels["num_gpu_blocks"])) == (16, 40)


def test_adapters_are_in_labels_and_the_value_is_the_time(families: dict[str, Metric]):
    (sample,) = families["vllm:lora_requests_info"].samples
    assert families["vllm:lora_requests_info"].type == "gauge"
    assert abs(sample.value - time.time()) < 60
    assert int(sample.labels["max_lora"]) == 4
    listed = {state: sample.labels[f"{state}_lora_adapters"].split(",") for state in ("running", "waiting")}
    assert listed == {"running": ["poet"], "waiting": ["clerk", "scribe"]}
