from __future__ import annotations

import json

import pytest

from loadtest.bench.device_idle import DeviceIdle, Span, gaps_between, idle_json, print_idle, spans
from loadtest.bench.offline_bench import bench
from loadtest.bench.options import IdleOptions
from service.errors import ConfigError
from service.settings.settings import Settings
from tests.composition.conftest import SMALL


def test_gaps_are_where_no_kernel_runs_and_are_told_by_their_neighbours() -> None:
    kernels = [
        Span("gemm", 0, 10),
        Span("other stream's", 4, 20),
        Span("within", 5, 6),
        Span("norm", 20, 22),
        Span("first of the next", 25, 30),
        Span("gemm", 31, 32),
    ]
    gaps = gaps_between(kernels)
    assert [(gap.us, gap.before, gap.after) for gap in gaps] == [
        (3, "norm", "first of the next"),
        (1, "first of the next", "gemm"),
    ]


def test_spans_are_those_of_a_kind_in_order() -> None:
    events = [
        {"cat": "kernel", "name": "b", "ts": 5, "dur": 2.5},
        {"cat": "kernel", "name": "a", "ts": 1, "dur": 1},
        {"cat": "gpu_memcpy", "name": "copy", "ts": 2, "dur": 1},
        {"name": "without a kind", "ts": 2, "dur": 1},
        {"cat": "kernel", "name": "an instant", "ts": 3},
    ]
    assert spans(events, {"kernel"}) == [Span("a", 1, 2), Span("b", 5, 7.5)]


def test_idle_and_busy_time_fill_the_window(capsys: pytest.CaptureFixture[str]) -> None:
    kernels = [Span("a", 0, 10), Span("b", 13, 20), Span("a", 30, 40), Span("b", 43, 50)]
    idle = DeviceIdle(4, 2, 1.0, 1.5, 50.0, 6.0, 4, gaps_between(kernels))
    assert idle.idle_us == 16
    told = idle_json(idle)
    assert told["idle_us"] == 8
    assert told["idle_share"] == 16 / 50
    assert told["gaps_us"] == {"0 to 2": 0, "2 to 5": 3, "5 to 20": 5, "20 to 100": 0, "100 to inf": 0}
    print_idle(idle)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["b", "->", "a", "0.50", "5.0", "10.0"] for line in lines)


def test_a_model_is_measured_with_its_whole_batch(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(Settings(**SMALL), IdleOptions(batch_size=2, input_len=8, num_steps=3)) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["bench"], result["batch_size"], result["steps"]) == ("idle", 2, 3)
    assert 0 <= result["idle_share"] < 1
    assert result["step_ms"] > 0
    with pytest.raises(ConfigError, match="batch-size: 8 is more than max-num-seqs"):
        bench(Settings(**SMALL), IdleOptions(8, 8, 3))
