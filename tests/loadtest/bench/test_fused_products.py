from __future__ import annotations

import pytest
import torch

from loadtest.bench import fused_products
from loadtest.bench.fused_products import FORMS, Layer

SMALL = {"output": (64, 64), "gate_up": (256, 64), "down": (64, 128), "qkv": (96, 64)}


@pytest.mark.gpu
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [1, 16])
def test_a_layer_is_the_same_fused_and_not_early_and_late(form, rows, monkeypatch):
    monkeypatch.setattr(fused_products, "SHAPES", {name: (2 * n, 2 * k) for name, (n, k) in SMALL.items()})
    monkeypatch.setattr(fused_products, "_HIDDEN", 128)
    for is_late in (False, True):
        layer = Layer(form, rows, is_late)
        layer.residual = torch.zeros_like(layer.residual)
        fused = layer.fused_layer().float()
        layer.residual = torch.zeros_like(layer.residual)
        plain = layer.plain("down", fused_products.silu_and_mul(layer.plain("gate_up", normed(layer, "output"))))
        want = layer.plain("qkv", divided(plain)).float()
        assert (fused - want).norm() < 0.03 * want.norm()


def normed(layer: Layer, name: str) -> torch.Tensor:
    return divided(layer.plain(name, layer.x))


def divided(x: torch.Tensor) -> torch.Tensor:
    return (x.float() * (x.float().pow(2).mean(-1, keepdim=True) + 1e-5).rsqrt()).bfloat16()


def test_bf16_is_none_of_the_quantized_forms():
    assert FORMS[-1] == "bf16" and all("int4" in form or form == "fp8" for form in FORMS[:-1])
