from __future__ import annotations

import re

from prometheus_client import CollectorRegistry, generate_latest

from service.metrics.instruments import Instruments

VLLM_BOUNDS = {
    "time_to_first_token": [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
                            20.0, 40.0, 80.0, 160.0, 640.0, 2560.0],
    "e2e": [0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
            960.0, 1920.0, 7680.0],
    "time_per_output_token": [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
                              20.0, 40.0, 80.0],
}  # fmt: skip


def test_names_are_canonical() -> None:
    text = generate_latest(registry := CollectorRegistry())
    Instruments(registry)
    text = generate_latest(registry)
    names = re.findall(rb"# TYPE (\S+) (\S+)", text)
    assert names
    assert all(name.startswith(b"headrace_") for name, _ in names)
    assert all(name.endswith(b"_total") for name, kind in names if kind == b"counter")


def test_there_is_no_created_series() -> None:
    Instruments(registry := CollectorRegistry())
    assert b"_created" not in generate_latest(registry)


def test_buckets_hold_vllms_bounds() -> None:
    instruments = Instruments(CollectorRegistry())
    for name, bounds in VLLM_BOUNDS.items():
        (metric,) = getattr(instruments, name).collect()
        ours = {float(sample.labels["le"]) for sample in metric.samples if sample.name.endswith("_bucket")}
        assert set(bounds) <= ours, name


def test_two_sets_do_not_meet() -> None:
    first, second = CollectorRegistry(), CollectorRegistry()
    Instruments(first).aborts.labels("x").inc()
    Instruments(second)
    assert second.get_sample_value("headrace_aborts_total", {"reason": "x"}) is None
