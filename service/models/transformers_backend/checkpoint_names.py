"""Where a checkpoint's tensors go, by transformers' own mapping of names.

A checkpoint may have other names than transformers' modules, and a matrix an expert where these have one tensor for all
experts. What transformers would rename and stack while it loads is here worked out from the names alone: each stored
tensor has a place of its own, a view of a parameter.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    WeightConverter,
    WeightRenaming,
    dot_natural_key,
    rename_source_key,
)

from service.errors import ModelLoadError
from service.layers.weight_storage import Destination


class CheckpointNames:
    """model: as transformers built it, before anything in it is replaced."""

    def __init__(self, model: PreTrainedModel) -> None:
        mapping = get_model_conversion_mapping(model)
        self._renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
        self._converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
        self._prefix = model.base_model_prefix
        self._known = dict.fromkeys(model.state_dict(), True)

    def places(self, stored: Collection[str], tensors: Mapping[str, Destination]) -> dict[str, Destination]:
        """By a stored tensor's name where it goes; by the model's own where none is stored for it. tensors: the
        model's, by its own names. A stored tensor that is none of the model's has no place. Raises ModelLoadError."""
        places: dict[str, Destination] = {}
        found: set[str] = set()
        merged: dict[str, dict[str, list[str]]] = {}
        for name in sorted(stored, key=dot_natural_key):
            own, pattern = self._own_name(name)
            if own not in tensors:
                continue
            found.add(own)
            if pattern is None:
                places[name] = tensors[own]
            else:
                merged.setdefault(own, {}).setdefault(pattern, []).append(name)
        for own, sources in merged.items():
            merged_tensor = tensors[own]
            assert isinstance(merged_tensor, Tensor), "experts are plain"
            places |= _parts(own, merged_tensor, sources, self._converter_of(next(iter(sources))))
        return places | {name: tensor for name, tensor in tensors.items() if name not in found}

    def _own_name(self, name: str) -> tuple[str, str | None]:
        own, pattern = rename_source_key(name, self._renamings, self._converters, self._prefix, self._known)
        if own not in self._known and name in self._known:
            return name, None
        return own, pattern

    def _converter_of(self, pattern: str) -> WeightConverter:
        return next(converter for converter in self._converters if pattern in converter.source_patterns)


def _parts(
    own: str, tensor: Tensor, sources: Mapping[str, Sequence[str]], converter: WeightConverter
) -> dict[str, Tensor]:
    """tensor [E, ...], made of one tensor an expert, or of several that follow each other within an expert's."""
    match converter.operations:
        case [MergeModulelist(dim=0)]:
            in_order = [next(iter(sources))]
        case [MergeModulelist(dim=0), Concatenate(dim=1)]:
            in_order = [pattern for pattern in converter.source_patterns if pattern in sources]
        case operations:
            names = ", ".join(type(operation).__name__ for operation in operations)
            raise ModelLoadError(f"{own}: the checkpoint's form of it would have to be converted ({names})")
    if any(len(names) != len(tensor) for names in sources.values()):
        raise ModelLoadError(f"{own}: there are not {len(tensor)} of each of {', '.join(sources)}")
    views = torch.chunk(tensor, len(in_order), dim=1) if len(in_order) > 1 else (tensor,)
    return {
        name: part
        for pattern, view in zip(in_order, views, strict=True)
        for name, part in zip(sources[pattern], view.unbind(), strict=True)
    }
