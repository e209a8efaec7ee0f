from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN

from service.layers.gated_mlp import GatedMlp


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("activation", "theirs"), [("silu", "silu"), ("gelu", "gelu"), ("gelu_tanh", "gelu_new")])
def test_gate_up_down(activation, theirs, bias):
    mlp = GatedMlp(8, 12, activation, bias=bias)
    for parameter in mlp.parameters():
        parameter.data = torch.randn(parameter.shape)
    x = torch.randn(5, 8)
    merged = F.linear(x, mlp.gate_up.weight, mlp.gate_up.bias)
    want = F.linear(ACT2FN[theirs](merged[:, :12]) * merged[:, 12:], mlp.down.weight, mlp.down.bias)
    torch.testing.assert_close(mlp(x).value(), want)
