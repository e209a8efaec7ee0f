"""The trained A and B matrices on a device, and their gradient: each one flat fp32 tensor.

Products are computed in the model's dtype, from a copy that is renewed after each optimizer step.
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
    """One output part of a linear. columns: its columns in the linear's output. matrices, gradients: its A and B."""

    columns: slice
    matrices: LoraMatrices
    gradients: LoraMatrices


class TrainedParts(NamedTuple):
    """The trained parts of one linear. a [rank * parts, in_features]: A of all parts; a_gradient: likewise, fp32."""

    parts: Sequence[TrainedPart]
    a: Tensor
    a_gradient: Tensor


class LoraParameters:
    """values, gradient: [num_parameters] fp32. computed: `values` in `dtype`; the same tensor if that is fp32."""

    def __init__(self, state: TrainingState, dtype: torch.dtype, device: torch.device) -> None:
        self.layout = state.layout
        self.values = state.parameters.to(device, copy=True)
        self.gradient = torch.zeros_like(self.values)
        self.computed = self.values.to(dtype)
        self._matrices = self.layout.matrices(self.computed)
        self._gradients = self.layout.matrices(self.gradient)

    def gradient_norms(self) -> Tensor:
        """Norm of each matrix's gradient, A then B, site by site. Computed per matrix so that the total norm has the
        same bits however sites are divided among stages."""
        matrices = [matrix for site in self._gradients.values() for matrix in site]
        return torch.stack(torch._foreach_norm(matrices))

    def renew_computed(self) -> None:
        """Call after the values have changed."""
        if self.computed is not self.values:
            self.computed.copy_(self.values)

    def parts_of(
        self, names: Sequence[str], out_features: Sequence[int], shards: Sequence[Shard | None] | None = None
    ) -> TrainedParts:
        """names, out_features: of a linear's parts, in order. shards: what this rank has of each part. The result then
        has only that: a shard by inputs keeps columns of A (for all parts together), a shard by outputs rows of B."""
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
    """The kept indices along `dim`."""
    if shard is None or shard.dim != dim:
        return slice(None)
    (kept,) = shard.ranges
    return slice(kept.start, kept.stop)


def _one_behind_another(flat: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """The A's of one linear's parts, which are adjacent in `flat`, as one matrix."""
    if not matrices:
        return flat.new_empty(0, 0)
    first = matrices[0].storage_offset()
    num_rows, width = sum(len(a) for a in matrices), matrices[0].shape[1]
    return flat[first : first + num_rows * width].view(num_rows, width)


def first_state(layout: ParameterLayout, seed: int) -> TrainingState:
    """Initialized as in PEFT: A as torch initializes linears (kaiming_uniform with a = sqrt(5), so within 1 /
    sqrt(in)), B zero, so that the adapter has no effect at first. The same values on every device."""
    generator = torch.Generator().manual_seed(seed)
    parameters = torch.zeros(layout.num_parameters)
    for a, _ in layout.matrices(parameters).values():
        bound = 1 / math.sqrt(a.shape[1])
        a.uniform_(-bound, bound, generator=generator)
    return _state(layout, parameters, seed)


def state_of_adapter(layout: ParameterLayout, weights: AdapterWeights, scale: float, seed: int) -> TrainingState:
    """Continue from an adapter: `layout`'s matrices, multiplied by `scale`, add what the adapter adds.

    Sites and ranks that the adapter does not have start as in a new adapter. Raises ValueError if the adapter has other
    sites than `layout`, or a higher rank.
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
        raise ValueError(f"targets: the adapter also changes {sorted(others)[0]}, which is not in targets")
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
