from __future__ import annotations

import random

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from service.metrics.plain_histogram import PlainHistogram, PlainHistograms

BOUNDS = (0.01, 0.05, 0.1, 1, 1_000_000)
NAME = "waited_seconds"


def test_is_the_librarys_histogram_of_the_same_observations():
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    waited = PlainHistogram(NAME, "How long.", BOUNDS)
    ours.register(waited)
    histogram = Histogram(NAME, "How long.", registry=theirs, buckets=BOUNDS)
    draws = random.Random(0)
    for _ in range(50):
        gaps = [(draws.choice([0.0, 0.01, 0.02, 0.05, 0.1, 0.5, 3.0]), draws.randint(1, 300)) for _ in range(3)]
        for seconds, count in gaps:
            waited.observe(seconds, count)
            for _ in range(count):
                histogram.observe(seconds)

    def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
        found = (sample for metric in registry.collect() for sample in metric.samples)
        return {(s.name, s.labels.get("le", "")): round(s.value, 6) for s in found if not s.name.endswith("_created")}

    assert samples(ours) == samples(theirs)


def test_is_there_before_the_first_observation():
    registry = CollectorRegistry()
    registry.register(PlainHistogram(NAME, "How long.", BOUNDS))
    assert registry.get_sample_value(f"{NAME}_count") == 0
    assert registry.get_sample_value(f"{NAME}_bucket", {"le": "+Inf"}) == 0


def test_by_label_it_is_the_librarys_too():
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    waited = PlainHistograms(NAME, "How long.", BOUNDS, "who", ("a", "b", "c"))
    ours.register(waited)
    histogram = Histogram(NAME, "How long.", ("who",), registry=theirs, buckets=BOUNDS)
    for who in "abc":
        histogram.labels(who)
    for who, seconds in (("a", 0.02), ("b", 3.0), ("a", 0.5)):
        waited.labels(who).observe(seconds)
        histogram.labels(who).observe(seconds)
    assert _without_creation(generate_latest(ours)) == _without_creation(generate_latest(theirs))


def _without_creation(text: bytes) -> list[bytes]:
    return [line for line in text.splitlines() if b"_created" not in line]
