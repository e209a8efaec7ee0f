from __future__ import annotations

import pytest

from loadtest.bench.options import IdleOptions, KernelsOptions, LatencyOptions, ThroughputOptions, read_options


def test_what_it_does_not_know_is_left_for_the_service():
    arguments = ["latency", "--batch-sizes", "1,64", "some/model", "--load-format", "dummy", "--input-len", "7"]
    options, rest = read_options(arguments)
    assert options == LatencyOptions(batch_sizes=(1, 64), input_len=7, output_len=None)
    assert rest == ["some/model", "--load-format", "dummy"]


def test_defaults():
    assert read_options(["latency"]) == (LatencyOptions(None, 128, None), [])
    assert read_options(["throughput"]) == (ThroughputOptions("prefill", None), [])
    assert read_options(["idle"]) == (IdleOptions(256, 128, 40), [])
    assert read_options(["kernels"]) == (KernelsOptions(()), [])


def test_kernels_by_name():
    assert read_options(["kernels", "rms", "silu"])[0] == KernelsOptions(("rms", "silu"))


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["speed"],
        ["latency", "--batch-sizes", "1,0"],
        ["latency", "--batch-sizes", "many"],
        ["throughput", "--num-prompts", "-1"],
        ["kernels", "--dtype", "float32"],
    ],
    ids=str,
)
def test_a_wrong_option_ends_the_program(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        read_options(arguments)
    assert end.value.code == 2
    assert "usage: python -m loadtest.bench" in capsys.readouterr().err
