from __future__ import annotations

from prometheus_client import CollectorRegistry

from service.core.stats import AdapterUse, EngineSnapshot
from service.metrics.live_gauges import MOST_ADAPTERS, OTHER_ADAPTERS, LiveGauges

BUSY = EngineSnapshot(
    num_running=3,
    num_waiting=2,
    waiting_tokens=50,
    batch_size=4,
    used_blocks=10,
    total_blocks=40,
    block_size=16,
    kv_tokens=120,
    kv_token_blocks=10,
    num_swapped=1,
    num_failed_in_a_row=7,
    arena_blocks=6,
)


def read(snapshot: EngineSnapshot | None) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(LiveGauges(lambda: snapshot))
    return {sample.name: sample.value for metric in registry.collect() for sample in metric.samples}


def test_reads_the_engine() -> None:
    assert read(BUSY) == {
        "headrace_batch_size": 4,
        "headrace_requests_running": 3,
        "headrace_requests_waiting": 2,
        "headrace_requests_swapped": 1,
        "headrace_waiting_tokens": 50,
        "headrace_failed_iterations_in_a_row": 7,
        "headrace_kv_blocks_used": 10,
        "headrace_kv_blocks": 40,
        "headrace_kv_blocks_used_ratio": 0.25,
        "headrace_training_arena_blocks": 6,
        "headrace_kv_tokens": 120,
        "headrace_kv_token_ratio": 0.75,
        "headrace_lora_slots": 0,
        "headrace_lora_adapters": 0,
        "headrace_lora_kv_blocks": 0,
    }


def test_adapters_by_name_and_those_beyond_the_most_wanted_together() -> None:
    waiting = {f"adapter-{number}": 2 if number < MOST_ADAPTERS else 1 for number in range(100)}
    use = AdapterUse(4, 3, 5, {"poet": 2, "clerk": 1}, waiting)
    registry = CollectorRegistry()
    registry.register(LiveGauges(lambda: BUSY._replace(adapters=use)))
    assert registry.get_sample_value("headrace_lora_slots") == 4
    assert registry.get_sample_value("headrace_lora_adapters") == 3
    assert registry.get_sample_value("headrace_lora_kv_blocks") == 5
    assert registry.get_sample_value("headrace_lora_requests_running", {"adapter": "poet"}) == 2
    shown = {
        sample.labels["adapter"]: sample.value
        for metric in registry.collect()
        for sample in metric.samples
        if sample.name == "headrace_lora_requests_waiting"
    }
    assert shown.pop(OTHER_ADAPTERS) == 100 - MOST_ADAPTERS
    assert set(shown.values()) == {2}
    assert shown.keys() == {f"adapter-{number}" for number in range(MOST_ADAPTERS)}


def test_without_an_engine_all_is_zero_and_nothing_is_wasted() -> None:
    values = read(None)
    assert values.pop("headrace_kv_token_ratio") == 1
    assert set(values.values()) == {0}


def test_reads_anew_at_each_scrape() -> None:
    now: list[EngineSnapshot | None] = [None]
    registry = CollectorRegistry()
    registry.register(LiveGauges(lambda: now[0]))
    assert registry.get_sample_value("headrace_batch_size") == 0
    now[0] = BUSY
    assert registry.get_sample_value("headrace_batch_size") == 4
