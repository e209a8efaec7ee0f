from __future__ import annotations

import pytest
import torch

from kernels.gated_linear import MAX_ROWS
from kernels.skinny_linear import new_arrivals
from service.layers import gated_rows
from service.layers.gated_mlp import GatedMlp
from service.layers.gated_rows import gate_by_kernel, gate_plainly
from service.layers.linear_method import KernelMethod, KernelRows


def some_mlp(activation="silu", bias=False, device="cpu", dtype=torch.bfloat16):
    mlp = GatedMlp(256, 512, activation, bias=bias)
    for parameter in mlp.parameters():
        parameter.data = (torch.randn(parameter.shape, device=device) / 16).to(dtype)
    return mlp


def timed_by(times):
    """times: of the kernel by rows; cuBLAS always takes 1."""
    return lambda gate, x, mlps: times[len(x)] if gate is gate_by_kernel else 1.0


def test_on_a_cpu_never():
    assert not gated_rows.gated_rows([some_mlp()], 0)


@pytest.mark.gpu
@pytest.mark.parametrize("unlike", [{"activation": "gelu"}, {"bias": True}, {"dtype": torch.float32}], ids=str)
def test_what_the_kernel_does_not_know_stays_plain(unlike, monkeypatch):
    monkeypatch.setattr(gated_rows, "_seconds", timed_by(dict.fromkeys(range(MAX_ROWS + 1), 0.5)))
    assert not gated_rows.gated_rows([some_mlp(device="cuda", **unlike)], 0)


@pytest.mark.gpu
def test_from_the_most_rows_down_to_where_it_loses(monkeypatch):
    monkeypatch.setattr(gated_rows, "_seconds", timed_by({128: 0.5, 120: 0.9, 112: 1.1, 104: 0.5}))
    mlps = [some_mlp(device="cuda") for _ in range(2)]
    assert gated_rows.gated_rows(mlps, 64) == range(120, 129)
    assert gated_rows.gated_rows(mlps, 120) == range(128, 129), "skinny_linear has the others"


@pytest.mark.gpu
def test_both_ways_are_the_same_function():
    mlp = some_mlp(device="cuda")
    assert gated_rows.gated_rows([mlp], 64).stop == MAX_ROWS + 1
    weight = mlp.gate_up.weight
    gated = KernelRows(gated=range(65, 129))
    for rows in (65, 72, 128):
        x = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16)
        plain, by_kernel = gate_plainly(mlp, x).double(), gate_by_kernel(mlp, x).double()
        assert (by_kernel - plain).norm() < 0.01 * plain.norm()
        mlp.gate_up.use(KernelMethod(weight, None, new_arrivals(1024, x.device), gated))
        assert torch.equal(mlp.gate(x), gate_by_kernel(mlp, x))
