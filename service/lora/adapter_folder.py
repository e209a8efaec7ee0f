"""An adapter on disk: a folder in PEFT's format, read by exact names and checked before its weights are.

    adapter_config.json         what it is, ranks and alphas (adapter_config.py)
    adapter_model.safetensors   MODULE.lora_A.weight [r, in], MODULE.lora_B.weight [out, r]

A is [r, in] and B [out, r] for every kind of module: `fan_in_fan_out`, which GPT-2's adapters set, tells how the base's
weight is stored.
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
"""Of a module's name in PEFT's model around the base."""
_OPTIONAL_PREFIXES = ("model.", "transformer.")
"""Of all names of a base; an adapter of the stack without its head lacks it, and a checkpoint of the stack may."""
_A, _B = ".lora_A.weight", ".lora_B.weight"
_EMBEDDING_SUFFIXES = (".lora_embedding_A", ".lora_embedding_B")
_MAX_BYTES_PER_ELEMENT = 4
_HEADER_BYTES_PER_TENSOR = 512  # PEFT's take about 160
_FIXED_HEADER_BYTES = 65_536
_MAX_NAMED = 8  # faults of one kind that a message names
_MAX_NAME_CHARS = 160


@dataclass(frozen=True, slots=True)
class SiteWeights:
    """What is added to a module's product: scale * x a^T b^T. a [r, in_features], b [out_features, r], contiguous."""

    a: Tensor
    b: Tensor
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterSite:
    """A module of the base that adapters may change: x [T, in_features] -> [T, out_features].

    shard: what this rank has of the module's weight, where several divide it; None: all. Of an adapter it needs the
    same outputs, rows of b, or the same inputs, columns of a, and the other matrix whole: what the ranks get by some of
    the inputs is summed with what the base's weight gives.
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
        """This rank's part."""
        if self.shard is None:
            return weights
        if self.shard.dim == 0:
            return replace(weights, b=self.shard.of(weights.b))
        return replace(weights, a=self.shard.of(weights.a))

    def _own_size(self, dim: int, whole: int) -> int:
        return whole if self.shard is None or self.shard.dim != dim else sum(map(len, self.shard.ranges))


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """An adapter in the host's memory.

    sites: by the module's name in the base's checkpoint; modules that it does not change are not among them.
    digest: sha256, in hex, over the sites' names, shapes, values and scales; equal digests compute the same.
    """

    sites: Mapping[str, SiteWeights]
    digest: str


def read_adapter(folder: Path, sites: Mapping[str, AdapterSite], max_rank: int, dtype: torch.dtype) -> AdapterWeights:
    """A PEFT adapter's weights, converted to `dtype`.

    sites: all modules that adapters may change, by their names in the base's checkpoint. For any thread; a folder that
    changes meanwhile makes a refusal or weights of either state, and is no danger. Besides the result, one tensor is
    held as it is stored. Raises AdapterError naming the file, and the field or the tensors.
    """
    config = read_adapter_config(folder, max_patterns=len(sites))
    with opened_tensors(_weights_file(folder), *_limits(sites, max_rank)) as file:
        pairs, faults = _pairs(file.tensors, sites)
        for name, pair in pairs.items():
            pair.check(sites[name], config, max_rank, file.tensors, faults)
        faults.raise_any()
        if not pairs:
            raise AdapterError(f"{WEIGHTS_FILE}: holds no adapter")
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
    if os.path.isfile(file):  # False also where nobody may look
        return file
    if os.path.isfile(folder / _PICKLED_FILE):
        raise AdapterError(
            f"{_PICKLED_FILE}: is a pickle, which may run code and is not read; save the adapter as {WEIGHTS_FILE}"
        )
    raise AdapterError(f"{WEIGHTS_FILE}: not in the adapter's folder")


def _limits(sites: Mapping[str, AdapterSite], max_rank: int) -> tuple[int, int]:
    """Most bytes of a header and of the weights of an adapter with all sites at the highest rank."""
    elements = max_rank * sum(site.in_features + site.out_features for site in sites.values())
    return _FIXED_HEADER_BYTES + 2 * len(sites) * _HEADER_BYTES_PER_TENSOR, elements * _MAX_BYTES_PER_ELEMENT


@dataclass(slots=True)
class _Faults:
    """What is wrong with the tensors, by kind, for one message about all of it."""

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
    """A's and B's names in the file, "" for what is not there. module: by its name in the model that was trained."""

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
    """The file's matrices by site, and the names that are none of a site."""
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
    """The module's name in the model that was trained ("" if the tensor is none of LoRA), and whether this is A."""
    for suffix in (_A, _B, *_EMBEDDING_SUFFIXES):
        if tensor.endswith(suffix):
            return tensor.removesuffix(suffix).removeprefix(_WRAPPER_PREFIX), suffix == _A
    return "", False


def _site_of(module: str, sites: Mapping[str, AdapterSite]) -> str:
    """The site's name, be a prefix there or left out; "" for no site."""
    names = (
        module,
        *(prefix + module for prefix in _OPTIONAL_PREFIXES),
        *(module.removeprefix(prefix) for prefix in _OPTIONAL_PREFIXES),
    )
    return next((name for name in names if name in sites), "")


def _read(file: TensorFile, name: str, dtype: torch.dtype) -> Tensor:
    tensor = file.read(name).to(dtype)
    # NaN and infinity are in every sum of theirs: a third of the time of asking each number.
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
