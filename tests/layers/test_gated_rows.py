from __future__ import annotations

import pytest
import torch

from kernels.gated_linear import MAX_ROWS
from service.layers import gated_rows
from service.layers.gated_mlp import GatedMlp
from service.layers.gated_rows import choose_gated_rows


def some_mlp(activation="silu", bias=False, device="cpu", dtype=torch.bfloat16):
    mlp = GatedMlp(256, 512, activation, bias=bias)
    for parameter in mlp.parameters():
        parameter.data = (torch.randn(parameter.shape, device=device) / 16).to(dtype)
    return mlp


def timed_by(times):
    """times: of the kernel by rows; cuBLAS always takes 1."""
    return lambda gate, x, mlps: times[len(x)] if gate is GatedMlp.gate_by_kernel else 1.0


def test_on_a_cpu_never():
    mlp = some_mlp()
    choose_gated_rows([mlp])
    assert not mlp.gated_rows


@pytest.mark.gpu
@pytest.mark.parametrize("unlike", [{"activation": "gelu"}, {"bias": True}, {"dtype": torch.float32}], ids=str)
def test_what_the_kernel_does_not_know_stays_plain(unlike, monkeypatch):
    monkeypatch.setattr(gated_rows, "_seconds", timed_by(dict.fromkeys(range(MAX_ROWS + 1), 0.5)))
    mlp = some_mlp(device="cuda", **unlike)
    choose_gated_rows([mlp])
    assert not mlp.gated_rows


@pytest.mark.gpu
def test_from_the_most_rows_down_to_where_it_loses(monkeypatch):
    monkeypatch.setattr(gated_rows, "_seconds", timed_by({128: 0.5, 120: 0.9, 112: 1.1, 104: 0.5}))
    mlps = [some_mlp(device="cuda") for _ in range(2)]
    choose_gated_rows(mlps)
    assert [mlp.gated_rows for mlp in mlps] == [range(120, 129)] * 2


@pytest.mark.gpu
def test_both_ways_are_the_same_function():
    mlp = some_mlp(device="cuda")
    choose_gated_rows([mlp])
    assert mlp.gated_rows.stop == MAX_ROWS + 1
    for rows in (65, 72, 128):
        x = torch.randn(rows, 256, device="cuda", dtype=torch.bfloat16)
        plain, by_kernel = mlp.gate_plainly(x).double(), mlp.gate_by_kernel(x).double()
        assert (by_kernel - plain).norm() < 0.01 * plain.norm()
        mlp.gated_rows = range(65, 129)
        assert torch.equal(mlp(x), mlp.down(mlp.gate_by_kernel(x)))
