from __future__ import annotations

import json

import pytest

from loadtest.bench.kernels import bench_kernels


def test_measures_what_is_named_on_any_device(capsys):
    assert bench_kernels(["rms_norm"]) == 0
    printed = capsys.readouterr().out.splitlines()
    result = json.loads(printed[-1])
    assert {kernel["name"] for kernel in result["kernels"]} == {"rms_norm"}
    assert result["limits"]["bytes_per_s"] > 0


@pytest.mark.gpu
def test_measures_the_kernels_that_are_named(capsys):
    assert bench_kernels(["silu_and_mul"]) == 0
    printed = capsys.readouterr().out.splitlines()
    result = json.loads(printed[-1])
    assert {kernel["name"] for kernel in result["kernels"]} == {"silu_and_mul"}
    assert result["paged_attention_decode"] == []
    assert all(kernel["share"] > 0 for kernel in result["kernels"])
