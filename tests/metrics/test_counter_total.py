from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from service.metrics.counter_total import counter_total


def test_a_counter_without_labels_has_its_value() -> None:
    counter = Counter("plain", "", registry=CollectorRegistry())
    assert counter_total(counter) == 0.0
    counter.inc(3)
    assert counter_total(counter) == 3.0  # and not its time of creation besides


def test_children_are_summed_over_the_labels_that_are_not_named() -> None:
    counter = Counter("labelled", "", ("kind", "where"), registry=CollectorRegistry())
    counter.labels("a", "here").inc(1)
    counter.labels("a", "there").inc(2)
    counter.labels("b", "here").inc(4)
    assert counter_total(counter) == 7.0
    assert counter_total(counter, kind="a") == 3.0
    assert counter_total(counter, kind="b", where="here") == 4.0
    assert counter_total(counter, kind="c") == 0.0
