"""The state of a training after an optimizer step: all that it needs to resume, bit for bit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from service.lora.adapter_folder import AdapterSite


class LoraMatrices(NamedTuple):
    """One module's adapter: adds scale * x a^T b^T to its output. a [rank, in_features], b [out_features, rank]."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """Order of the trained matrices in one flat tensor: A of all sites, then B of all sites.

    So the A's of one merged linear's parts, which multiply the same x, form one matrix.
    sites: the trained modules, by their names in the base's checkpoint, in the model's order; at least one.
    """

    sites: Mapping[str, AdapterSite]
    rank: int

    @property
    def num_parameters(self) -> int:
        return self.rank * sum(site.in_features + site.out_features for site in self.sites.values())

    def parts(self, flat: Tensor, part: ParameterLayout) -> tuple[Tensor, Tensor]:
        """Views of `flat` [num_parameters]: the A's of `part`'s sites, which are contiguous and in the same order here,
        and their B's."""
        names = list(self.sites)
        before = [self.sites[name] for name in names[: names.index(next(iter(part.sites)))]]
        (first_a, first_b), (num_a, num_b) = self._num_of(before), self._num_of(part.sites.values())
        first_b += self._num_of(self.sites.values())[0]
        return flat[first_a : first_a + num_a], flat[first_b : first_b + num_b]

    def _num_of(self, sites: Collection[AdapterSite]) -> tuple[int, int]:
        """Number of elements in their A's, and in their B's."""
        return self.rank * sum(site.in_features for site in sites), self.rank * sum(s.out_features for s in sites)

    def matrices(self, parameters: Tensor) -> Mapping[str, LoraMatrices]:
        """A and B by site, as views of `parameters` [num_parameters]."""
        sites, rank = self.sites.values(), self.rank
        sizes = chain((rank * site.in_features for site in sites), (rank * site.out_features for site in sites))
        parts = parameters.split(list(sizes))
        return {
            name: LoraMatrices(a.view(rank, -1), b.view(-1, rank))
            for name, a, b in zip(self.sites, parts[: len(sites)], parts[len(sites) :], strict=True)
        }


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """A training after an optimizer step. The fp32 tensors are on the host and never change: any thread may read them.

    parameters: A and B. first_moments, second_moments: AdamW's. Each [layout.num_parameters].
    step: optimizer steps done, which is also the position in the data (`TrainingData.step`). seed: of the initial A and
    of the data's order. num_trained_tokens: tokens with a loss, in all steps together.
    """

    layout: ParameterLayout
    parameters: Tensor
    first_moments: Tensor
    second_moments: Tensor
    step: int
    seed: int
    num_trained_tokens: int

    def matrices(self) -> Mapping[str, LoraMatrices]:
        """A and B by site, as views of `parameters`."""
        return self.layout.matrices(self.parameters)

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.parameters, self.first_moments, self.second_moments

    def part(self, own: ParameterLayout) -> TrainingState:
        """The state of these sites alone, copied; `self` if these are all sites."""
        if len(own.sites) == len(self.layout.sites):
            return self
        parameters, first, second = (torch.cat(self.layout.parts(each, own)) for each in self.tensors)
        return replace(self, layout=own, parameters=parameters, first_moments=first, second_moments=second)
