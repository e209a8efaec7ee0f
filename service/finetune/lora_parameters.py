"""The trained A and B on a device, with their gradient: fp32, in one flat tensor each.

Products are made in the model's dtype, so there is a copy in it, made anew after each optimizer step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from service.finetune.training_state import LoraMatrices, ParameterLayout, TrainingState
from service.layers.shard import Shard
from service.lora.adapter_folder import AdapterWeights


class TrainedPart(NamedTuple):
    """One output part of a linear. columns: its place in the linear's output. matrices, gradients: of its site."""

    columns: slice
    matrices: LoraMatrices
    gradients: LoraMatrices


class TrainedParts(NamedTuple):
    """The trained parts of one linear. a [rank * parts, in_features]: of all of them; a_gradient: likewise, fp32."""

    parts: Sequence[TrainedPart]
    a: Tensor
    a_gradient: Tensor


class LoraParameters:
    """values, gradient [num_parameters] fp32; computed: the values in `dtype`, the same tensor if that is fp32."""

    def __init__(self, state: TrainingState, dtype: torch.dtype, device: torch.device) -> None:
        self.layout = state.layout
        self.values = state.parameters.to(device, copy=True)
        self.gradient = torch.zeros_like(self.values)
        self.computed = self.values.to(dtype)
        self._matrices = self.layout.matrices(self.computed)
        self._gradients = self.layout.matrices(self.gradient)

    def gradient_norms(self) -> Tensor:
        """Of each matrix, A and B of one site after the other: of sites that are divided among stages the same numbers
        in the same order, so that their norm has the same bits."""
        matrices = [matrix for site in self._gradients.values() for matrix in site]
        return torch.stack(torch._foreach_norm(matrices))

    def renew_computed(self) -> None:
        """The values have changed."""
        if self.computed is not self.values:
            self.computed.copy_(self.values)

    def parts_of(
        self, names: Sequence[str], out_features: Sequence[int], shards: Sequence[Shard | None] | None = None
    ) -> TrainedParts:
        """names, out_features: of all parts of a linear, in their order. shards: of each, what a rank has of it; then
        its part of the matrices: of A, in what is returned for all parts together, its inputs, of B its outputs."""
        parts, trained, start = [], list[str](), 0
        columns = slice(None)
        for name, size, shard in zip(names, out_features, shards or [None] * len(names), strict=True):
            if name in self.layout.sites:
                rows, columns = _kept(shard, 0), _kept(shard, 1)
                matrices, gradients = self._matrices[name], self._gradients[name]
                mine = matrices._replace(b=matrices.b[rows]), gradients._replace(b=gradients.b[rows])
                parts.append(TrainedPart(slice(start, start + size), *mine))
                trained.append(name)
            start += size
        return TrainedParts(
            parts,
            _one_behind_another(self.computed, [self._matrices[name].a for name in trained])[:, columns],
            _one_behind_another(self.gradient, [self._gradients[name].a for name in trained])[:, columns],
        )


def _kept(shard: Shard | None, dim: int) -> slice:
    """Of the indices along `dim`."""
    if shard is None or shard.dim != dim:
        return slice(None)
    (kept,) = shard.ranges
    return slice(kept.start, kept.stop)


def _one_behind_another(flat: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """A's of parts of one linear, which lie so in `flat`, as one matrix."""
    if not matrices:
        return flat.new_empty(0, 0)
    first = matrices[0].storage_offset()
    num_rows, width = sum(len(a) for a in matrices), matrices[0].shape[1]
    return flat[first : first + num_rows * width].view(num_rows, width)


def first_state(layout: ParameterLayout, seed: int) -> TrainingState:
    """PEFT's: A uniform as torch's linears begin (kaiming_uniform with a = sqrt 5, which is within 1 / sqrt(in)), B
    zero, so that the adapter changes nothing at first. The same values on every device."""
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.zeros(layout.num_parameters)
    for a, _ in layout.matrices(parameters).values():
        bound = 1 / math.sqrt(a.shape[1])
        a.uniform_(-bound, bound, generator=generator)
    return _state(layout, parameters, seed)


def state_of_adapter(layout: ParameterLayout, weights: AdapterWeights, scale: float, seed: int) -> TrainingState:
    """To go on from an adapter: what it adds is what `layout`'s matrices add when multiplied by `scale`.

    Sites that it does not change, and ranks that it does not have, begin as those of a new one. Raises ValueError for
    one that changes other sites, or has a higher rank.
    """
    _check_contained(layout, weights)
    state = first_state(layout, seed)
    matrices = state.matrices()
    for name, site in weights.sites.items():
        rank = site.a.shape[0]
        matrices[name].a[:rank] = site.a.float()
        matrices[name].b[:, :rank] = site.b.float() * (site.scale / scale)
    return state


def _check_contained(layout: ParameterLayout, weights: AdapterWeights) -> None:
    if others := weights.sites.keys() - layout.sites.keys():
        raise ValueError(f"targets: the adapter changes {sorted(others)[0]}, which is not among them")
    highest = max(len(site.a) for site in weights.sites.values())
    if highest > layout.rank:
        raise ValueError(f"rank: the adapter has rank {highest}, more than {layout.rank}")


def _state(layout: ParameterLayout, parameters: Tensor, seed: int) -> TrainingState:
    return TrainingState(
        layout=layout,
        parameters=parameters,
        first_moments=torch.zeros_like(parameters),
        second_moments=torch.zeros_like(parameters),
        step=0,
        seed=seed,
        num_trained_tokens=0,
    )
