from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from service.layers.gated_mlp import GatedMlp


@pytest.mark.parametrize("bias", [False, True])
def test_gate_up_down(bias):
    mlp = GatedMlp(8, 12, bias=bias)
    for parameter in mlp.parameters():
        parameter.data = torch.randn(parameter.shape)
    x = torch.randn(5, 8)
    merged = F.linear(x, mlp.gate_up.weight, mlp.gate_up.bias)
    want = F.linear(F.silu(merged[:, :12]) * merged[:, 12:], mlp.down.weight, mlp.down.bias)
    torch.testing.assert_close(mlp(x), want)
