from __future__ import annotations

import platform
import resource

import pytest
import torch

from service.runner.host_memory import keep_freed_memory, zeros_on_demand


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(1,), (5, 3, 7)])
def test_zeros_that_can_be_written(shape, dtype):
    tensor = zeros_on_demand(shape, dtype)
    assert (tensor.shape, tensor.dtype) == (shape, dtype)
    assert (tensor == 0).all()
    tensor.fill_(2)
    assert (tensor == 2).all()


def test_memory_is_taken_only_where_it_is_written():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tensor = zeros_on_demand((1 << 33,), torch.bfloat16)
    tensor[-1] = 3
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 64 << 10
    assert (float(tensor[0]), float(tensor[-1])) == (0, 3)


def test_glibc_takes_the_settings():
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
