from __future__ import annotations

import math
import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Info, generate_latest

from service.core.events import Outcome
from service.core.stats import AdapterUse, EngineSnapshot
from service.metrics import text_format
from service.metrics.instruments import Instruments
from service.metrics.live_gauges import LiveGauges
from service.metrics.recorder import Recorder
from service.metrics.text_format import TextFormat
from service.metrics.vllm_names import VllmNames
from tests.api.test_call_summary import stats


def a_servers_registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    instruments = Instruments(registry)
    recorder = Recorder(instruments, "model")
    busy = EngineSnapshot(used_blocks=3, adapters=AdapterUse(4, 1, 1, {"a": 1}, {"b": 2}))
    registry.register(LiveGauges(lambda: busy))
    registry.register(VllmNames(instruments, lambda: EngineSnapshot(num_running=3), "model"))  # no time in it
    recorder.record_http("/v1/models/{model_id:path}", "GET", 200, 0.25)
    recorder.record_policies({"scheduling": "fcfs"})
    recorder.record_request(stats(), Outcome.FINISHED, ())
    return registry


def test_every_byte_is_the_librarys_and_again_once_series_are_known():
    registry = a_servers_registry()
    counter = Counter("odd_total", 'Meaning with \\ and\na "new" line.', ("label",), registry=registry)
    gauge = Gauge("edge", "Of values.", ("of",), registry=registry)
    Info("facts", "Info.", registry=registry).info({"b": "2", "a": 'x"\\\ny'})
    text = TextFormat(registry)
    for value in (0, 1, 999, 1000, 0.1, 1e-9, 1e16, 123456789.5, math.inf, -math.inf, math.nan, -3):
        gauge.labels("of it").set(value)
        counter.labels('a "quoted"\\ and\nbroken').inc()
        assert text.render() == generate_latest(registry)


def test_series_that_come_and_go_are_not_kept_for_ever(monkeypatch):
    monkeypatch.setattr(text_format, "_MOST_KEPT", 100)
    registry = CollectorRegistry()
    gauge = Gauge("of_adapter", "Comes and goes.", ("adapter",), registry=registry)
    text = TextFormat(registry)
    for i in range(1000):
        gauge.labels(str(i)).set(i)
        assert text.render() == generate_latest(registry)
        gauge.remove(str(i))
        assert len(text._series) <= 101


def test_a_scrape_takes_a_good_deal_less_time_than_the_librarys():
    registry = a_servers_registry()
    text = TextFormat(registry)

    def least_s(scrape: Callable[[], bytes]) -> float:
        times = []
        for _ in range(20):
            began_s = time.thread_time()
            scrape()
            times.append(time.thread_time() - began_s)
        return min(times)

    assert 1.5 * least_s(text.render) < least_s(lambda: generate_latest(registry))
