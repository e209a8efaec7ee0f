"""What a training is at the edge of an optimizer step: all that it needs to go on, bit for bit."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from service.lora.adapter_folder import AdapterSite


class LoraMatrices(NamedTuple):
    """Of one module: scale * x a^T b^T is added to its product. a [rank, in_features], b [out_features, rank]."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True, slots=True)
class ParameterLayout:
    """Where the trained matrices lie in one flat tensor: A of all sites in their order, then B of all sites.

    So the A's of parts of one merged linear, which multiply the same x, are one matrix.
    sites: the trained modules, by their names in the base's checkpoint, in the model's order; at least one.
    """

    sites: Mapping[str, AdapterSite]
    rank: int

    @property
    def num_parameters(self) -> int:
        return self.rank * sum(site.in_features + site.out_features for site in self.sites.values())

    def parts(self, flat: Tensor, part: ParameterLayout) -> tuple[Tensor, Tensor]:
        """Of `flat` [num_parameters] the A's of `part`'s sites, which are neighbours here in the same order, and their
        B's, as views."""
        names = list(self.sites)
        before = [self.sites[name] for name in names[: names.index(next(iter(part.sites)))]]
        (first_a, first_b), (num_a, num_b) = self._num_of(before), self._num_of(part.sites.values())
        first_b += self._num_of(self.sites.values())[0]
        return flat[first_a : first_a + num_a], flat[first_b : first_b + num_b]

    def _num_of(self, sites: Collection[AdapterSite]) -> tuple[int, int]:
        """Numbers in their A's, and in their B's."""
        return self.rank * sum(site.in_features for site in sites), self.rank * sum(s.out_features for s in sites)

    def matrices(self, parameters: Tensor) -> Mapping[str, LoraMatrices]:
        """By site, as views of `parameters` [num_parameters]."""
        sites, rank = self.sites.values(), self.rank
        sizes = chain((rank * site.in_features for site in sites), (rank * site.out_features for site in sites))
        parts = parameters.split(list(sizes))
        return {
            name: LoraMatrices(a.view(rank, -1), b.view(-1, rank))
            for name, a, b in zip(self.sites, parts[: len(sites)], parts[len(sites) :], strict=True)
        }


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """At an optimizer step's edge. Its tensors are on the host, fp32, and nobody else's: any thread may read them.

    parameters, first_moments, second_moments [layout.num_parameters]: A and B, and AdamW's moments of their gradients.
    step: optimizer steps done, which is also the place in the data (`TrainingData.step`). seed: of the first A and of
    the data's order. num_trained_tokens: that had a loss, in all steps together.
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
        """Of these sites alone, copied; itself if they are all."""
        if len(own.sites) == len(self.layout.sites):
            return self
        parameters, first, second = (torch.cat(self.layout.parts(each, own)) for each in self.tensors)
        return replace(self, layout=own, parameters=parameters, first_moments=first, second_moments=second)
