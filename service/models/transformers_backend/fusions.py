"""Finds the small transformers modules that one of our kernels can replace, by trying them.

Their classes have other names in each family, and the same name may mean another formula. So a copy of a module with
small random weights computes a few rows on the CPU, and is replaced by what gives the same result.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.rms_norm import rms_norm
from service.layers.activation import Activation
from service.layers.gated_mlp import GatedMlp
from service.layers.layer import Layer

_SIZE, _INNER = 8, 12
_GATES: Mapping[Activation, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"silu": F.silu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh")}
)
_GATE, _UP, _DOWN = "gate_proj", "up_proj", "down_proj"


class GatedRows(Layer):
    """x [..., hidden_size] -> [..., hidden_size]. Replaces a gated MLP of transformers."""

    def __init__(self, mlp: GatedMlp) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(x.flatten(0, -2)).value().unflatten(0, x.shape[:-1])


class NormedRows(nn.Module):
    """x [1, T..., size] -> the same shape. Replaces an RMS norm of transformers. weight [size], under the same name."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x[0], self.weight, self.eps)[None]


def use_our_norms(base: nn.Module) -> None:
    """Replace the RMS norms of a model on the meta device."""
    for path, module in list(base.named_modules()):
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if isinstance(eps, float) and _is_rms_norm(module, eps):
            parent, _, child = path.rpartition(".")
            weight = module.get_parameter("weight")
            setattr(base.get_submodule(parent), child, NormedRows(weight, eps))


def gated_mlp_of(module: nn.Module) -> GatedMlp | None:
    """Our MLP that equals the module, on its device; None if there is none."""
    children = [module._modules.get(name) for name in (_GATE, _UP, _DOWN)]
    if not all(type(child) is nn.Linear for child in children):
        return None
    gate = module.get_submodule(_GATE)
    has_biases = {child.bias is not None for child in children if isinstance(child, nn.Linear)}
    activation = _activation_of(module)
    if activation is None or len(has_biases) > 1 or not isinstance(gate, nn.Linear):
        return None
    return GatedMlp(gate.in_features, gate.out_features, activation, bias=has_biases.pop())


def _is_rms_norm(module: nn.Module, eps: float) -> bool:
    if set(module._parameters) != {"weight"} or module._modules or module._buffers:
        return False
    weight = torch.rand(_SIZE, device="cpu") + 0.5
    trial = copy.copy(module)
    trial._parameters = {"weight": nn.Parameter(weight, requires_grad=False)}
    x = 0.01 * torch.randn(1, 3, _SIZE, device="cpu")  # small, so that eps matters
    return _equals(trial, x, rms_norm(x[0], weight, eps)[None])


def _activation_of(module: nn.Module) -> Activation | None:
    trial = copy.copy(module)
    trial._modules = dict(module._modules)
    gate, up = (nn.Linear(_SIZE, _INNER, device="cpu") for _ in range(2))
    down = nn.Linear(_INNER, _SIZE, device="cpu")
    trial._modules |= {_GATE: gate, _UP: up, _DOWN: down}
    x = torch.randn(1, 3, _SIZE, device="cpu")
    with torch.no_grad():
        for activation, function in _GATES.items():
            if _equals(trial, x, down(function(gate(x)) * up(x))):
                return activation
    return None


@torch.no_grad()
def _equals(trial: nn.Module, x: Tensor, expected: Tensor) -> bool:
    try:
        made = trial(x)
    except Exception:  # foreign code: whatever it raises, it is not equal
        return False
    return isinstance(made, Tensor) and made.shape == expected.shape and torch.allclose(made, expected, 1e-5, 1e-6)
