from __future__ import annotations

import pytest
import torch

from kernels.gated_linear import MAX_ROWS
from kernels.skinny_linear import new_arrivals
from service.layers.gated_mlp import GatedMlp
from service.layers.linear_method import KernelMethod, KernelRows, RowRange
from service.runner.choices.gated_rows import gate_by_kernel, gate_plainly, gated_rows
from service.runner.choices.timer import seconds_on_gpu


def some_mlp(activation="silu", bias=False, device="cpu", dtype=torch.bfloat16):
    mlp = GatedMlp(256, 512, activation, bias=bias)
    for parameter in mlp.parameters():
        parameter.data = (torch.randn(parameter.shape, device=device) / 16).to(dtype)
    arrivals = new_arrivals(1024, torch.device(device))
    mlp.gate_up.use(KernelMethod(mlp.gate_up.weight, mlp.gate_up.bias, arrivals))
    return mlp


def timed_by(times):
    """times: of the kernel by rows; cuBLAS always takes 1."""
    return lambda launches: times[len(launches[0].args[1])] if launches[0].func is gate_by_kernel else 1.0


def test_on_a_cpu_never():
    assert gated_rows([some_mlp()], 0, lambda launches: pytest.fail("timed")) == RowRange()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_both_ways_are_the_same_function(device):
    mlp = some_mlp(device=device)
    gated = KernelRows(gated=RowRange(65, 128))
    for rows in (65, 72, 128):
        x = torch.randn(rows, 256, device=device, dtype=torch.bfloat16)
        mlp.gate_up.use(KernelMethod(mlp.gate_up.weight, None, new_arrivals(1024, x.device)))
        plain, by_kernel = gate_plainly(mlp, x).double(), gate_by_kernel(mlp, x).double()
        assert (by_kernel - plain).norm() < 0.01 * plain.norm()
        mlp.gate_up.use(KernelMethod(mlp.gate_up.weight, None, new_arrivals(1024, x.device), gated))
        assert torch.equal(mlp.gate(x), gate_by_kernel(mlp, x))


@pytest.mark.gpu
def test_a_real_choice_ends_at_the_most_rows():
    assert gated_rows([some_mlp(device="cuda")], 64, seconds_on_gpu).last in (0, MAX_ROWS)


@pytest.mark.gpu
@pytest.mark.parametrize("unlike", [{"activation": "gelu"}, {"bias": True}, {"dtype": torch.float32}], ids=str)
def test_what_the_kernel_does_not_know_stays_plain(unlike):
    timer = timed_by(dict.fromkeys(range(MAX_ROWS + 1), 0.5))
    assert gated_rows([some_mlp(device="cuda", **unlike)], 0, timer) == RowRange()


@pytest.mark.gpu
def test_from_the_most_rows_down_to_where_it_loses():
    timer = timed_by({128: 0.5, 120: 0.9, 112: 1.1, 104: 0.5})
    mlps = [some_mlp(device="cuda") for _ in range(2)]
    assert gated_rows(mlps, 64, timer) == RowRange(120, 128)
    assert gated_rows(mlps, 120, timer) == RowRange(128, 128), "skinny_linear has the others"
    assert gated_rows(mlps, 64, timed_by({128: 1.0})) == RowRange()
