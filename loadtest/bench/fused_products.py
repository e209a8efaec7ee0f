"""Time of a decode layer's products on a GPU, with norms and activation fused and not fused, us:

    python -m loadtest.bench.fused_products [--forms int4-symmetric fp8 bf16] [--rows 1] [--late]

Llama-8B's shapes: output, gate_up, down, qkv, in this order, each alone and all of them in sequence. Fused: as in
kernels/linear_add_norm.py and norm_linear.py. Not fused: norms and activation are separate kernels. In sequence each
product reads what the one before it wrote, with dependent launch; `--late` also times kernels that start their
dependents late. Measured by replays of CUDA graphs over the weights of several layers. Takes 20 s.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kernels.compile_ahead import compile_ahead
from kernels.linear_add_norm import DeferredNorm, linear_add_norm_triton
from kernels.norm_linear import norm_linear_triton
from kernels.quantized_weight import QuantizedWeight, Weight
from kernels.register_product import takes
from kernels.replay_timing import seconds_by_replay
from kernels.rms_norm import add_rms_norm
from kernels.silu_and_mul import silu_and_mul
from kernels.skinny_config import SkinnyConfig, quantized_config, register_config, skinny_config
from kernels.skinny_linear import new_arrivals, skinny_linear_triton
from loadtest.bench.products import SHAPES, random_weight

FORMS = ("int4-symmetric", "int4", "fp8", "bf16")
_LAYERS = 4
_ROUNDS = 7
_EPS = 1e-5
_HIDDEN = 4096


class Layer:
    """One layer's weights and the inputs of its products. is_late: kernels start their dependents late."""

    def __init__(self, form: str, rows: int, is_late: bool) -> None:
        self.weights = {name: random_weight(form, *shape) for name, shape in SHAPES.items()}
        self.is_late = is_late
        self.x = torch.randn(rows, _HIDDEN, device="cuda").bfloat16()
        self.gated = torch.randn(rows, SHAPES["down"][1], device="cuda").bfloat16()
        self.residual, self.norm = torch.randn_like(self.x), torch.ones_like(self.x[0])
        self.normed = DeferredNorm(self.x, torch.rand(64, 16, device="cuda"), _EPS)
        self.arrivals = new_arrivals(SHAPES["gate_up"][0], self.x.device)

    def config(self, x: Tensor, weight: Weight) -> SkinnyConfig:
        if not isinstance(weight, QuantizedWeight):
            config = skinny_config(x.shape[0], *weight.shape)
        elif takes(x, weight):
            config = register_config(weight)
        else:
            config = quantized_config(x.shape[0], weight)
        return replace(config, starts_late=self.is_late)

    def plain(self, name: str, x: Tensor) -> Tensor:
        weight = self.weights[name]
        return skinny_linear_triton(x, weight, None, self.arrivals, self.config(x, weight))

    def with_norm(self, name: str, x: Tensor) -> DeferredNorm:
        weight, config = self.weights[name], self.config(x, self.weights[name])
        return linear_add_norm_triton(x, weight, None, self.residual, self.norm, _EPS, self.arrivals, config)[0]

    def behind(self, name: str, normed: DeferredNorm, gated: bool) -> Tensor:
        weight, config = self.weights[name], self.config(normed.weighted, self.weights[name])
        return norm_linear_triton(normed, weight, None, self.arrivals, gated, config)

    def fused_layer(self) -> Tensor:
        gated = self.behind("gate_up", self.with_norm("output", self.x), True)
        return self.behind("qkv", self.with_norm("down", gated), False)

    def unfused_layer(self) -> Tensor:
        normed = self._normed(self.plain("output", self.x))
        normed = self._normed(self.plain("down", silu_and_mul(self.plain("gate_up", normed))))
        return self.plain("qkv", normed)

    def _normed(self, x: Tensor) -> Tensor:
        return add_rms_norm(x, self.residual, self.norm, _EPS)[0]

    def ways(self) -> dict[str, Callable[[], object]]:
        return {
            "output": partial(self.plain, "output", self.x),
            "output+norm": partial(self.with_norm, "output", self.x),
            "gate_up": partial(self.plain, "gate_up", self.x),
            "norm+gate_up+silu": partial(self.behind, "gate_up", self.normed, True),
            "down": partial(self.plain, "down", self.gated),
            "down+norm": partial(self.with_norm, "down", self.gated),
            "qkv": partial(self.plain, "qkv", self.x),
            "norm+qkv": partial(self.behind, "qkv", self.normed, False),
            "unfused": self.unfused_layer,
            "fused": self.fused_layer,
        }


@torch.inference_mode()
def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="time fused products of few rows")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["int4-symmetric", "fp8", "bf16"])
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--late", action="store_true")
    options = parser.parse_args(arguments)
    for form in options.forms:
        for rows in options.rows:
            layers = [Layer(form, rows, False) for _ in range(_LAYERS)]
            for is_late in (False, True) if options.late else (False,):
                for layer in layers:
                    layer.is_late = is_late
                compile_ahead(lambda: [way() for way in layers[0].ways().values()])  # noqa: B023 - called at once
                print(f"{form}, {rows} rows{', late' if is_late else ''}:", flush=True)
                for name in layers[0].ways():
                    launches = [layer.ways()[name] for layer in layers] * 2
                    for launch in launches:
                        launch()
                    print(f"    {seconds_by_replay(launches, _ROUNDS) * 1e6:7.1f} us {name}", flush=True)


if __name__ == "__main__":
    main()
