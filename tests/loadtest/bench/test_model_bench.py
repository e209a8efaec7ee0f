from __future__ import annotations

import json

import pytest

from loadtest.bench.device_limits import DeviceLimits
from loadtest.bench.model_bench import BenchTarget, bench_latency, bench_throughput
from loadtest.bench.model_limits import ModelCosts
from loadtest.bench.options import LatencyOptions
from service.errors import ConfigError
from tests.engine.harness import Harness


def target(**changes):
    values = {
        "engine": Harness(num_blocks=200, max_num_batched_tokens=64).engine,
        "costs": ModelCosts(1000, 2000, 200, 10, 50, (None,)),
        "limits": DeviceLimits("toy", 1e9, 1e9),
        "vocab_size": 1000,
        "max_model_len": 100,
        "max_num_seqs": 8,
        "kv_tokens": 800,
        "is_gpu": False,
        "facts": {"model": "toy", "settings": ""},
    }
    return BenchTarget(**{**values, **changes})


def last_line(capsys):
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "model toy"
    return json.loads(printed[-1])


def test_latency_on_a_cpu_is_small(capsys):
    bench_latency(target(), LatencyOptions(None, 8, None))
    result = last_line(capsys)
    assert (result["bench"], result["model"], result["input_len"], result["output_len"]) == ("latency", "toy", 8, 64)
    assert [row["batch_size"] for row in result["rows"]] == [1, 8]
    assert result["limits"]["bytes_per_s"] == 1e9


def test_throughput(capsys):
    bench_throughput(target(), "own", [(8, 4)] * 6)
    result = last_line(capsys)
    assert (result["bench"], result["workload"], result["num_requests"]) == ("throughput", "own", 6)
    assert result["requests_per_s"] > 0


@pytest.mark.parametrize(
    ("options", "changes", "named"),
    [
        (LatencyOptions((1, 9), 8, 8), {}, r"batch-sizes: 9 is more than max-num-seqs \(8\)"),
        (LatencyOptions((8,), 50, 51), {}, r"50 \+ 51 tokens is longer than the context of 100"),
        (LatencyOptions((8,), 50, 50), {"kv_tokens": 799}, "8 sequences of 100 tokens; the KV cache holds 799"),
    ],
    ids=str,
)
def test_what_cannot_run_is_refused_with_the_numbers(options, changes, named):
    with pytest.raises(ConfigError, match=named):
        bench_latency(target(**changes), options)


def test_a_request_of_a_workload_that_does_not_fit():
    with pytest.raises(ConfigError, match=r"90 \+ 20 tokens"):
        bench_throughput(target(), "own", [(8, 4), (90, 20)])
