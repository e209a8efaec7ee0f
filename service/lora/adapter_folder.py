"""Reads an adapter from disk: a folder in PEFT's format. Only exact file names; checked before weights are read.

    adapter_config.json         type, ranks and alphas (adapter_config.py)
    adapter_model.safetensors   MODULE.lora_A.weight [r, in], MODULE.lora_B.weight [out, r]

A is [r, in] and B [out, r] for every kind of module. `fan_in_fan_out`, which GPT-2's adapters set, only says how the
base's weight is stored.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor

from service.errors import AdapterError
from service.layers.shard import Shard
from service.lora.adapter_config import AdapterConfig, read_adapter_config
from service.lora.tensor_file import DTYPES, StoredTensor, TensorFile, opened_tensors

WEIGHTS_FILE = "adapter_model.safetensors"
_PICKLED_FILE = "adapter_model.bin"
_WRAPPER_PREFIX = "base_model.model."
"""PEFT's prefix for the base model's module names."""
_OPTIONAL_PREFIXES = ("model.", "transformer.")
"""Prefixes of all names of a base. Adapters and checkpoints of a model without its head lack them."""
_A, _B = ".lora_A.weight", ".lora_B.weight"
_EMBEDDING_SUFFIXES = (".lora_embedding_A", ".lora_embedding_B")
_MAX_BYTES_PER_ELEMENT = 4
_HEADER_BYTES_PER_TENSOR = 512  # PEFT's take about 160
_FIXED_HEADER_BYTES = 65_536
_MAX_NAMED = 8  # names per kind of fault in an error message
_MAX_NAME_CHARS = 160


@dataclass(frozen=True, slots=True)
class SiteWeights:
    """Added to a module's output: scale * x a^T b^T. a [r, in_features], b [out_features, r], contiguous."""

    a: Tensor
    b: Tensor
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterSite:
    """A module of the base that adapters may change: x [T, in_features] -> [T, out_features].

    shard: this rank's part of the module's weight under tensor parallelism; None: all of it. Of an adapter, the rank
    then needs the same outputs (rows of b) or the same inputs (columns of a), and all of the other matrix: partial sums
    over inputs are added up together with those of the base's weight.
    """

    in_features: int
    out_features: int
    shard: Shard | None = None

    @property
    def own_in_features(self) -> int:
        return self._own_size(1, self.in_features)

    @property
    def own_out_features(self) -> int:
        return self._own_size(0, self.out_features)

    def own(self, weights: SiteWeights) -> SiteWeights:
        """This rank's part of the weights."""
        if self.shard is None:
            return weights
        if self.shard.dim == 0:
            return replace(weights, b=self.shard.of(weights.b))
        return replace(weights, a=self.shard.of(weights.a))

    def _own_size(self, dim: int, whole: int) -> int:
        return whole if self.shard is None or self.shard.dim != dim else sum(map(len, self.shard.ranges))


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter in host memory.

    sites: by the module's name in the base's checkpoint; only modules that the adapter changes.
    digest: sha256, in hex, of the sites' names, shapes, values and scales. Equal digests compute the same.
    """

    sites: Mapping[str, SiteWeights]
    digest: str


def read_adapter(folder: Path, sites: Mapping[str, AdapterSite], max_rank: int, dtype: torch.dtype) -> AdapterWeights:
    """Read a PEFT adapter's weights, converted to `dtype`.

    sites: all modules that adapters may change, by name in the base's checkpoint. Any thread. If the folder is changed
    meanwhile, the adapter is refused or has weights of either version; nothing worse happens. Besides the result, at
    most one tensor is in memory as stored. Raises AdapterError naming the file, and the field or tensors.
    """
    config = read_adapter_config(folder, max_patterns=len(sites))
    with opened_tensors(_weights_file(folder), *_limits(sites, max_rank)) as file:
        pairs, faults = _pairs(file.tensors, sites)
        for name, pair in pairs.items():
            pair.check(sites[name], config, max_rank, file.tensors, faults)
        faults.raise_any()
        if not pairs:
            raise AdapterError(f"{WEIGHTS_FILE}: contains no LoRA tensors")
        weights = {
            name: SiteWeights(
                _read(file, pairs[name].a, dtype),
                _read(file, pairs[name].b, dtype),
                config.scale_of(pairs[name].module),
            )
            for name in sites
            if name in pairs
        }
    return AdapterWeights(MappingProxyType(weights), _digest(weights))


def _weights_file(folder: Path) -> Path:
    file = folder / WEIGHTS_FILE
    if os.path.isfile(file):  # also False without permission to look
        return file
    if os.path.isfile(folder / _PICKLED_FILE):
        raise AdapterError(
            f"{_PICKLED_FILE}: is a pickle, which may run code and is not read; save the adapter as {WEIGHTS_FILE}"
        )
    raise AdapterError(f"{WEIGHTS_FILE}: is not in the adapter's folder")


def _limits(sites: Mapping[str, AdapterSite], max_rank: int) -> tuple[int, int]:
    """The most bytes of the header, and of the weights, of an adapter with all sites at the highest rank."""
    elements = max_rank * sum(site.in_features + site.out_features for site in sites.values())
    return _FIXED_HEADER_BYTES + 2 * len(sites) * _HEADER_BYTES_PER_TENSOR, elements * _MAX_BYTES_PER_ELEMENT


@dataclass(slots=True)
class _Faults:
    """Names of faulty tensors by kind of fault, for a single error message."""

    not_lora: list[str] = field(default_factory=list)
    no_site: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    high_rank: list[str] = field(default_factory=list)
    misshapen: list[str] = field(default_factory=list)
    mistyped: list[str] = field(default_factory=list)

    def raise_any(self) -> None:
        kinds = (
            ("not LoRA's A or B of a linear module", self.not_lora),
            ("of modules for which this model has no adapters", self.no_site),
            ("of one module under two names", self.twice),
            ("missing", self.missing),
            ("of a rank above the limit (--max-lora-rank)", self.high_rank),
            ("of another shape", self.misshapen),
            ("neither bf16, fp16 nor fp32", self.mistyped),
        )
        told = [f"{kind}: {_some(names)}" for kind, names in kinds if names]
        if told:
            raise AdapterError(f"{WEIGHTS_FILE}: does not fit the model. " + "; ".join(told))


@dataclass(slots=True)
class _Pair:
    """Names of A and B in the file, "" if missing. module: its name in the model that the adapter was trained on."""

    module: str
    a: str = ""
    b: str = ""

    def check(
        self,
        site: AdapterSite,
        config: AdapterConfig,
        max_rank: int,
        tensors: Mapping[str, StoredTensor],
        faults: _Faults,
    ) -> None:
        present = self.a or self.b
        stem = present.removesuffix(_A).removesuffix(_B)
        rank = config.rank_of(self.module)
        if rank > max_rank:
            faults.high_rank.append(f"{self.module} {rank} instead of at most {max_rank}")
        wanted = ((self.a, _A, (rank, site.in_features)), (self.b, _B, (site.out_features, rank)))
        for name, suffix, shape in wanted:
            if not name:
                faults.missing.append(stem + suffix)
                continue
            stored = tensors[name]
            if stored.shape != shape:
                faults.misshapen.append(f"{name} {stored.shape} instead of {shape}")
            if stored.dtype not in DTYPES:
                faults.mistyped.append(f"{name} {stored.dtype}")


def _pairs(tensors: Iterable[str], sites: Mapping[str, AdapterSite]) -> tuple[dict[str, _Pair], _Faults]:
    """The file's A and B by site, and the faults found in names."""
    pairs: dict[str, _Pair] = {}
    faults = _Faults()
    for name in tensors:
        module, is_a = _module_of(name)
        site = _site_of(module, sites)
        if not module:
            faults.not_lora.append(name)
        elif not site:
            faults.no_site.append(module)
        else:
            pair = pairs.setdefault(site, _Pair(module))
            if pair.module != module:
                faults.twice.append(f"{pair.module} and {module}")
            elif is_a:
                pair.a = name
            else:
                pair.b = name
    faults.no_site = list(dict.fromkeys(faults.no_site))
    return pairs, faults


def _module_of(tensor: str) -> tuple[str, bool]:
    """Module name in the trained model, "" if the tensor is not LoRA's; and whether it is A."""
    for suffix in (_A, _B, *_EMBEDDING_SUFFIXES):
        if tensor.endswith(suffix):
            return tensor.removesuffix(suffix).removeprefix(_WRAPPER_PREFIX), suffix == _A
    return "", False


def _site_of(module: str, sites: Mapping[str, AdapterSite]) -> str:
    """The site's name for a module, with an optional prefix added or removed; "" if there is none."""
    names = (
        module,
        *(prefix + module for prefix in _OPTIONAL_PREFIXES),
        *(module.removeprefix(prefix) for prefix in _OPTIONAL_PREFIXES),
    )
    return next((name for name in names if name in sites), "")


def _read(file: TensorFile, name: str, dtype: torch.dtype) -> Tensor:
    tensor = file.read(name).to(dtype)
    # NaN and infinity survive summation; this takes a third of the time of checking each element.
    if not tensor.sum(dtype=torch.float32).isfinite() and not tensor.isfinite().all():
        raise AdapterError(
            f"{WEIGHTS_FILE}: {_short(name)} holds NaN or infinity in {str(dtype).removeprefix('torch.')}"
        )
    return tensor


def _digest(weights: Mapping[str, SiteWeights]) -> str:
    digest = hashlib.sha256()
    for name in sorted(weights):
        site = weights[name]
        shapes = f"{tuple(site.a.shape)}{tuple(site.b.shape)}{site.a.dtype}"
        digest.update(f"\n{name} {shapes} ".encode() + struct.pack("<d", site.scale))
        for tensor in (site.a, site.b):
            digest.update(tensor.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _some(names: list[str]) -> str:
    shown = ", ".join(_short(name) for name in names[:_MAX_NAMED])
    return f"{shown} and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else shown


def _short(name: str) -> str:
    return name if len(name) <= _MAX_NAME_CHARS else f"{name[:_MAX_NAME_CHARS]}..."
