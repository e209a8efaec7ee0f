"""Linear projections, several of which may be merged into one matrix."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from service.layers.projection import Projection


class Product(NamedTuple):
    """linear(x), [T, size], still to be computed: whoever takes it may ask for it together with what comes next."""

    linear: Linear
    x: Tensor

    def value(self) -> Tensor:
        return self.linear(self.x)


class Linear(Projection):
    """y = x W^T + b for x [T, in_features]; several output parts side by side when merged (q, k, v or gate, up).

    weight  [sum(out_features), in_features]; bias [sum(out_features)] or None.
    """

    weight: nn.Parameter

    def __init__(self, in_features: int, *out_features: int, bias: bool = False) -> None:
        super().__init__(sum(out_features), in_features)
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(sum(out_features), in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(sum(out_features)), requires_grad=False) if bias else None

    @property
    def plain_weight(self) -> Tensor:
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

    def _give_up_plain_weight(self) -> None:
        del self.weight


class NamedLinear(NamedTuple):
    """A linear of a block, as checkpoints and adapters know it.

    names: of its output parts, in their order. reads_rows: it gets only the rows whose output is computed
    (`AttentionInputs.rows`): all linears behind a block's attention.
    """

    names: tuple[str, ...]
    linear: Linear
    reads_rows: bool = True

    def below(self, prefix: str) -> NamedLinear:
        """The same by longer names."""
        return self._replace(names=tuple(prefix + name for name in self.names))


def linear_tensors(linears: Iterable[NamedLinear]) -> dict[str, Tensor]:
    """`checkpoint_tensors` of them all."""
    return {name: part for names, linear, _ in linears for name, part in linear.checkpoint_tensors(*names).items()}
