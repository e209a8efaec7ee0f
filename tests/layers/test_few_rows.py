from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.skinny_linear import MAX_ROWS
from service.layers import few_rows
from service.layers.few_rows import most_skinny_rows
from service.layers.linear import Linear


def test_on_a_cpu_never():
    assert most_skinny_rows([torch.zeros(8, 8)]) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_on_a_gpu_up_to_some_number_of_rows(dtype):
    weights = [torch.randn(512, 256, device="cuda", dtype=dtype) for _ in range(3)]
    assert most_skinny_rows(weights) in (0, 1, 8, MAX_ROWS)


@pytest.mark.gpu
def test_the_faster_one_is_taken(monkeypatch):
    weights = [torch.randn(512, 256, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    seconds = {few_rows.skinny_linear: {1: 1.0, 8: 1.0, 16: 3.0}, F.linear: {1: 2.0, 8: 2.0, 16: 2.0}}
    monkeypatch.setattr(few_rows, "_seconds", lambda multiply, x, timed: seconds[multiply][len(x)])
    assert most_skinny_rows(weights) == 8


@pytest.mark.gpu
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_is_the_same_function_with_few_rows_and_with_many(bias):
    linear = Linear(256, 512, bias=bias).cuda()
    for parameter in linear.parameters():
        parameter.data = torch.randn(parameter.shape, device="cuda")
    linear.skinny_rows = 8
    x = torch.randn(9, 256, device="cuda")
    torch.testing.assert_close(linear(x)[:8], linear(x[:8]), atol=1e-3, rtol=1e-3)
