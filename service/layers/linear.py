"""Linear projections, several of which may be merged into one matrix."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Linear(nn.Module):
    """y = x W^T + b for x [T, in_features]; several output parts side by side when merged (q, k, v or gate, up).

    weight  [sum(out_features), in_features]; bias [sum(out_features)] or None.

    `pack` makes it inference-only: on a CPU the weight is brought into oneDNN's blocked layout once, instead of at
    every call, and the plain one is given up (`weight` is gone then). Without oneDNN, or on a GPU, nothing changes.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, in_features: int, *out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(sum(out_features), in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(sum(out_features)), requires_grad=False) if bias else None
        self._packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._packed is not None:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
            return y
        return F.linear(x, self.weight, self.bias)

    def checkpoint_tensors(self, *names: str) -> dict[str, Tensor]:
        """The parts under their checkpoint names, as views: writing to one fills its rows of the merged matrix."""
        assert len(names) == len(self.out_features)
        parts = torch.split(self.weight.detach(), list(self.out_features))
        tensors = {f"{name}.weight": part for name, part in zip(names, parts, strict=True)}
        if self.bias is not None:
            parts = torch.split(self.bias.detach(), list(self.out_features))
            tensors |= {f"{name}.bias": part for name, part in zip(names, parts, strict=True)}
        return tensors

    def pack(self) -> None:
        packed = pack_weight(self.weight)
        if packed is not None:
            self._packed = packed
            del self.weight


def pack_weight(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout, or None where that is not possible."""
    if weight.device.type != "cpu" or not can_pack(weight.dtype):
        return None
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 1)
    return packed


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether this torch and this CPU run packed linears of `dtype`. The operators are private: they are tried."""
    if dtype not in (torch.bfloat16, torch.float32):
        return False
    try:
        if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        weight, x = torch.eye(16, dtype=dtype), torch.ones(2, 16, dtype=dtype)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 1)
        return torch.equal(torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], ""), x)
    except (AttributeError, RuntimeError, TypeError):
        return False
