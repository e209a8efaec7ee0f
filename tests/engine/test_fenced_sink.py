from __future__ import annotations

from service.core.stats import RequestStats
from service.engine.fenced_sink import FencedSink
from tests.engine.harness import Harness, ListSink


class BrokenSink(ListSink):
    """Raises on every call."""

    def record_iteration(self, stats: object) -> None:
        raise MemoryError

    def record_training(self, stats: object) -> None:
        raise MemoryError

    def record_commands(self, seconds: float) -> None:
        raise MemoryError

    def record_request(self, stats: RequestStats, *_: object) -> None:
        raise MemoryError


def test_what_is_recorded_arrives():
    harness, sink = Harness(), ListSink()
    fenced = FencedSink(sink)
    harness.add(harness.request((1, 2), 3))
    harness.run()
    for stats in harness.sink.iterations:
        fenced.record_iteration(stats)
    for each in harness.sink.requests:
        fenced.record_request(*each)
    fenced.record_commands(0.1)
    assert (sink.iterations, sink.requests) == (harness.sink.iterations, harness.sink.requests)


def test_a_sink_that_always_fails_costs_no_request_anything():
    harness = Harness(sink=BrokenSink())
    harness.add(harness.request((1, 2), 30))
    harness.run()
    harness.check_against_oracle("request-0")


def test_the_log_is_not_filled(caplog):
    fenced = FencedSink(BrokenSink())
    for _ in range(100):
        fenced.record_commands(0.1)
    assert len(caplog.records) == 1
    assert caplog.records[0].exc_info
