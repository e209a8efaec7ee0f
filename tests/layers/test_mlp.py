from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN

from service.layers.mlp import Mlp


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("activation", "theirs"), [("relu", "relu"), ("gelu", "gelu"), ("gelu_tanh", "gelu_new"), ("silu", "silu")]
)
def test_up_activation_down(activation, theirs, bias):
    mlp = Mlp(8, 12, activation, bias=bias)
    for parameter in mlp.parameters():
        parameter.data = torch.randn(parameter.shape)
    x = torch.randn(5, 8)
    want = F.linear(ACT2FN[theirs](F.linear(x, mlp.up.weight, mlp.up.bias)), mlp.down.weight, mlp.down.bias)
    torch.testing.assert_close(mlp(x), want)
