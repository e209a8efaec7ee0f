from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.activations import ACT2FN

from kernels.fp8_rows import Fp8Rows, fp8_rows
from kernels.silu_and_mul import silu_and_mul
from kernels.skinny_linear import new_arrivals
from service.layers import linear_method
from service.layers.gated_mlp import GatedMlp
from service.layers.linear_method import KernelMethod
from service.layers.rms_norm import ResidualRMSNorm
from tests.kernels.quantized_weights import random_weight


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


@torch.inference_mode()
def test_what_the_next_product_would_round_to_fp8_is_rounded_where_it_is_computed(monkeypatch):
    """Of the norm before and of SiLU."""
    monkeypatch.setattr(linear_method, "multiplies_fp8", lambda _: True)  # a GPU's matrix units
    mlp, norm = GatedMlp(32, 48, bias=False), ResidualRMSNorm(32, 1e-5)
    norm.weight.data = torch.randn(32).bfloat16()
    for linear, shape in ((mlp.gate_up, (96, 32)), (mlp.down, (32, 48))):
        weight, _ = random_weight("fp8", *shape, torch.bfloat16)
        linear.use(KernelMethod(weight, None, new_arrivals(96, weight.device)))
    x, residual = torch.randn(5, 32).bfloat16(), torch.randn(5, 32).bfloat16()
    normed, total = norm(x, residual.clone(), mlp.gate_up)
    want, want_total = norm(x, residual.clone())
    assert isinstance(normed, Fp8Rows) and torch.equal(total, want_total)
    torch.testing.assert_close(normed.values.float() * normed.scales, want.float(), rtol=0.1, atol=0.02)
    product = mlp(normed)
    assert isinstance(product.x, Fp8Rows)
    gated = silu_and_mul(mlp.gate_up(fp8_rows(want)))
    torch.testing.assert_close(product.value().float(), mlp.down(gated).float(), rtol=0.1, atol=0.1)
