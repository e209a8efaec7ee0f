from __future__ import annotations

from prometheus_client import CollectorRegistry

from service.metrics.log_loss import LogLoss


def test_shows_the_number_of_the_moment():
    numbers = iter([0, 7])
    registry = CollectorRegistry()
    registry.register(LogLoss(lambda: next(numbers)))
    shown = [registry.get_sample_value("headrace_log_lines_lost_total") for _ in range(2)]
    assert shown == [0, 7]
