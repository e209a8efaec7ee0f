"""Linear projections, several of which may be merged into one matrix."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kernels.linear_add_norm import DeferredNorm
from kernels.norm_linear import norm_linear
from kernels.skinny_linear import skinny_linear
from service.layers.layer import Layer
from service.layers.packed_weight import PackedWeight, pack_weight


class DeferredProduct(NamedTuple):
    """linear(x), still to be computed: the norm behind it does so in its own launch."""

    linear: Linear
    x: Tensor


Normed = Tensor | DeferredNorm
"""What a product behind a norm takes, [T, size]."""

Branch = Tensor | DeferredProduct
"""What a branch adds to the residual stream, [T, size]."""


class Linear(Layer):
    """y = x W^T + b for x [T, in_features]; several output parts side by side when merged (q, k, v or gate, up).

    weight  [sum(out_features), in_features]; bias [sum(out_features)] or None.

    `pack` makes it inference-only where the CPU has a faster form of the weight (`weight` is gone then); else, and on
    a GPU, nothing changes. skinny_rows: up to so many rows go through skinny_linear (service/layers/few_rows.py), with
    these `arrivals`. deferred_rows: the numbers of rows that `end_branch` leaves to the norm
    (service/layers/stream_joint.py).
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, in_features: int, *out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(sum(out_features), in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(sum(out_features)), requires_grad=False) if bias else None
        self._packed: PackedWeight | None = None
        self.skinny_rows = 0
        self.deferred_rows = range(0)
        self.arrivals: Tensor | None = None

    def forward(self, x: Normed) -> Tensor:
        if isinstance(x, DeferredNorm):
            return norm_linear(x, self.weight, self.bias, self.arrivals)
        if self._packed is not None:
            return self._packed(x, self.bias)
        if x.shape[0] <= self.skinny_rows:
            return skinny_linear(x, self.weight, self.bias, self.arrivals)
        return F.linear(x, self.weight, self.bias)

    def end_branch(self, x: Tensor) -> Branch:
        """self(x), for the norm of the residual stream behind it."""
        return DeferredProduct(self, x) if x.shape[0] in self.deferred_rows else self(x)

    @property
    def plain_weight(self) -> Tensor:
        """Gone once it is packed."""
        return self.weight

    def checkpoint_tensors(self, *names: str) -> dict[str, Tensor]:
        """The parts under their checkpoint names, as views: writing to one fills its rows of the merged matrix."""
        assert len(names) == len(self.out_features)
        parts = torch.split(self.weight.detach(), list(self.out_features))
        tensors = {f"{name}.weight": part for name, part in zip(names, parts, strict=True)}
        if self.bias is not None:
            parts = torch.split(self.bias.detach(), list(self.out_features))
            tensors |= {f"{name}.bias": part for name, part in zip(names, parts, strict=True)}
        return tensors

    def pack(self, in_two_forms: bool) -> PackedWeight | None:
        """in_two_forms: memory may hold both forms. Returns the packed form, if there is one."""
        self._packed = pack_weight(self.weight, in_two_forms)
        if self._packed is not None:
            del self.weight
        return self._packed
