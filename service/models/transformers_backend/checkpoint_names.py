"""Where a checkpoint's tensors go, by transformers' own mapping of names.

A checkpoint may use other names than transformers' modules, and may have one matrix per expert where these have one
tensor for all experts. What transformers would rename and stack while loading is derived here from the names alone:
each stored tensor gets its own place, a view of a parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)
from transformers.modeling_utils import PreTrainedModel

from service.errors import ModelLoadError
from service.layers.shard import Shard, local
from service.layers.weight_storage import Destination


class CheckpointNames:
    """model: as transformers built it, before any of it is replaced."""

    def __init__(self, model: PreTrainedModel) -> None:
        mapping = get_model_conversion_mapping(model)
        self._renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        self._converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        self._prefix = model.base_model_prefix
        self._known = dict.fromkeys(model.state_dict(), True)

    def places(self, stored: Collection[str], tensors: Mapping[str, Destination]) -> dict[str, Destination]:
        """Name of a stored tensor -> where it goes; the model's own name where nothing is stored for it. tensors: the
        model's, by its own names. A stored tensor that the model does not have gets no place. Raises ModelLoadError."""
        single, merged = self._by_own_name(stored, tensors)
        places = {name: tensors[own] for name, own in single.items()}
        for own, sources in merged.items():
            merged_tensor = tensors[own]
            in_order = self._in_order(own, merged_tensor.shape[0], sources)
            assert isinstance(merged_tensor, Tensor), "experts are plain"
            for names, view in zip(in_order, torch.chunk(merged_tensor, len(in_order), dim=1), strict=True):
                places |= dict(zip(names, view.unbind(), strict=True))
        found = {*single.values(), *merged}
        return places | {name: tensor for name, tensor in tensors.items() if name not in found}

    def shards(self, stored: Collection[str], shards: Mapping[str, Shard]) -> dict[str, Shard]:
        """Name of a stored tensor -> the part of it that a rank has. shards: of the model's
        tensors, by its own names."""
        single, merged = self._by_own_name(stored, shards)
        of_stored = {name: shards[own] for name, own in single.items()}
        for own, sources in merged.items():
            num_experts = len(next(iter(sources.values())))
            in_order = self._in_order(own, num_experts, sources)
            for index, names in enumerate(in_order):
                of_stored |= dict.fromkeys(names, _of_one(shards[own], index, len(in_order)))
        return of_stored

    def own_name(self, name: str) -> str:
        """The model's own name for a stored tensor."""
        return self._own_name(name)[0]

    def _by_own_name(
        self, stored: Collection[str], wanted: Collection[str]
    ) -> tuple[dict[str, str], dict[str, dict[str, list[str]]]]:
        """Sort the stored tensors that are among the model's `wanted`. single: stored name -> own name. merged: own
        name -> pattern -> the stored names that together make that tensor."""
        single: dict[str, str] = {}
        merged: dict[str, dict[str, list[str]]] = {}
        for name in sorted(stored, key=dot_natural_key):
            own, pattern = self._own_name(name)
            if own not in wanted:
                continue
            if pattern is None:
                single[name] = own
            else:
                merged.setdefault(own, {}).setdefault(pattern, []).append(name)
        return single, merged

    def _own_name(self, name: str) -> tuple[str, str | None]:
        own, pattern = rename_source_key(name, self._renamings, self._converters, self._prefix, self._known)
        if own not in self._known and name in self._known:
            return name, None
        return own, pattern

    def _in_order(self, own: str, num_experts: int, sources: Mapping[str, Sequence[str]]) -> list[Sequence[str]]:
        """The stored tensors that make one tensor [E, ...]: one per expert, or several that are concatenated within
        each expert. Returns a list of names by expert for each of these."""
        pattern = next(iter(sources))
        converter = next(each for each in self._converters if pattern in each.source_patterns)
        match converter.operations:
            case [MergeModulelist(dim=0)]:
                patterns = [pattern]
            case [MergeModulelist(dim=0), Concatenate(dim=1)]:
                patterns = [each for each in converter.source_patterns if each in sources]
            case operations:
                names = ", ".join(type(operation).__name__ for operation in operations)
                raise ModelLoadError(f"{own}: stored in a form whose conversion ({names}) is not supported")
        if any(len(names) != num_experts for names in sources.values()):
            raise ModelLoadError(f"{own}: the checkpoint does not have {num_experts} each of {', '.join(sources)}")
        return [sources[each] for each in patterns]


def _of_one(shard: Shard, index: int, count: int) -> Shard:
    """shard: of a tensor [E, ...] that is made of `count` tensors per expert. Returns the shard of the tensor `index`
    of these."""
    if count == 1:
        return Shard(shard.dim - 1, shard.size, shard.ranges)
    assert shard.dim == 1 and shard.size % count == 0
    size = shard.size // count
    return Shard(0, size, local(shard.ranges, index * size, size))
