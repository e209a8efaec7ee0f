from __future__ import annotations

import pytest
import torch

from kernels.skinny_config import FEW_ROWS, MAX_ROWS
from kernels.skinny_linear import new_arrivals
from service.layers.linear import Linear
from service.layers.linear_method import KernelMethod, KernelRows
from service.runner.choices.skinny_rows import most_skinny_rows
from service.runner.choices.timer import seconds_on_gpu


def methods(device="cuda", dtype=torch.bfloat16, bias=None):
    arrivals = new_arrivals(512, torch.device(device))
    return [KernelMethod(torch.randn(512, 256, device=device, dtype=dtype), bias, arrivals) for _ in range(3)]


def test_on_a_cpu_never():
    assert most_skinny_rows(methods("cpu"), lambda launches: pytest.fail("timed")) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_on_a_gpu_up_to_some_number_of_rows(dtype):
    alike = methods(dtype=dtype)
    assert most_skinny_rows(alike, seconds_on_gpu) in (0, 1, 8, FEW_ROWS, MAX_ROWS)
    assert not alike[0].arrivals.any()


@pytest.mark.gpu
def test_the_faster_one_is_taken():
    cublas, skinny = {1: 2.0, 8: 2.0, 16: 2.0}, {1: 1.0, 8: 1.0, 16: 3.0}

    def timer(launches):
        [x] = launches[0].args
        return (skinny if launches[0].func.__self__.choice.skinny else cublas)[len(x)]

    assert most_skinny_rows(methods(), timer) == 8


@pytest.mark.gpu
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_is_the_same_function_with_few_rows_and_with_many(bias):
    linear = Linear(256, 512, bias=bias).cuda()
    for parameter in linear.parameters():
        parameter.data = torch.randn(parameter.shape, device="cuda")
    x = torch.randn(65, 256, device="cuda")
    want = linear(x)
    linear.use(KernelMethod(linear.weight, linear.bias, new_arrivals(512, x.device), KernelRows(skinny=MAX_ROWS)))
    for rows in (1, 8, 17, 64, 65):
        torch.testing.assert_close(linear(x[:rows]), want[:rows], atol=1e-3, rtol=1e-3)
