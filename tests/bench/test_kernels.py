from __future__ import annotations

import json

import pytest
import torch

from service.bench.kernels import bench_kernels
from service.errors import ConfigError


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so():
    with pytest.raises(ConfigError, match="a CUDA device is needed"):
        bench_kernels([])


@pytest.mark.gpu
def test_measures_the_kernels_that_are_named(capsys):
    assert bench_kernels(["silu_and_mul"]) == 0
    printed = capsys.readouterr().out.splitlines()
    result = json.loads(printed[-1])
    assert {kernel["name"] for kernel in result["kernels"]} == {"silu_and_mul"}
    assert result["paged_attention_decode"] == []
    assert all(0 < kernel["share"] < 2 for kernel in result["kernels"] if kernel["rows"] >= 256)
