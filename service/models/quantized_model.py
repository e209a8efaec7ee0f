"""Prepares a model's linears to be read as its quantization says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from service.errors import ConfigError, ModelLoadError
from service.layers.embedding import HEAD_NAME, OutputHead
from service.layers.linear import Linear
from service.layers.mixture_of_experts import MixtureOfExperts
from service.layers.packed_weight import stays_quantized
from service.layers.projection import Projection
from service.layers.shard import Shard
from service.layers.weight_storage import WeightStorage
from service.models.causal_lm import CausalLM
from service.models.fp8_storage import Fp8Storage
from service.models.int4_storage import Int4Storage
from service.models.int8_storage import Int8Storage
from service.models.quantization import INT8, Fp8Scheme, Int8Scheme, Quantization, Scheme
from service.models.quantized_shards import stored_shards

_UNREAD = ("input_scale", "output_scale", "weight_shape", "g_idx", "weight_g_idx", "k_scale", "v_scale", "q_scale")
"""Suffixes of stored tensors that are not used, of a linear or of the attention around it: activation scales (others
are used, kernels/quantized_linear.py), cache scales, shapes, and the order of groups, which is the trivial one where it
is supported."""


_UNREAD_OF_INT8 = (*_UNREAD, "input_zero_point", "weight_zero_point", "qzeros")
"""Also zeros: of activations, and those that say no more than that a weight is symmetric."""

Multiplies = Callable[[str, int, int], bool]
"""Whether a device multiplies by a quantized weight of this form (`WeightStorage.form`), [out, in], directly."""


def store_quantized(
    model: CausalLM,
    quantization: Quantization,
    *,
    dequantized: bool,
    except_for: Multiplies = lambda form, out, size: False,
) -> frozenset[str]:
    """Called before `CausalLM.materialize`. dequantized: weights are made plain, except those for which `except_for` is
    true. Returns names of tensors that the checkpoint may also hold and that are not read. Raises ModelLoadError naming
    a linear; ConfigError for one that the model's ranks cannot share."""
    unread = set[str]()
    for names, projection, out_features, in_features in _projections(model):
        scheme = _scheme(quantization, names)
        if scheme is None:
            continue
        _check_shares(model.parallel.size, quantization, scheme, names, projection)
        storage = _storage(scheme, names, out_features, in_features)
        is_made_plain = dequantized and not except_for(storage.form, sum(out_features), in_features)
        projection.store(storage, dequantized=is_made_plain)
        for name in names:
            unread |= {f"{place}.{suffix}" for place in (name, name.rpartition(".")[0]) for suffix in _unread(scheme)}
            if projection.bias is None:  # GPTQ's checkpoints hold zeros all the same
                unread.add(f"{name}.bias")
    for before, mixture in model.mixtures():
        if quantization.is_at_load:
            mixture.store_fp8()
        else:
            unread |= _store_experts(model, before, mixture, quantization, dequantized, except_for)
    return frozenset(unread)


def store_for_device(
    model: CausalLM, quantization: Quantization, device: torch.device, dtype: torch.dtype
) -> frozenset[str]:
    """`store_quantized` for the forms that the device can multiply x of dtype by."""

    def by_loops(form: str, out: int, size: int) -> bool:
        return stays_quantized(out, size, dtype, is_int8=form == INT8)

    def by_kernels(form: str, out: int, size: int) -> bool:
        return form != INT8

    multiplies = by_loops if device.type == "cpu" else by_kernels
    return store_quantized(model, quantization, dequantized=True, except_for=multiplies)


def made_plain(model: CausalLM, dtype: torch.dtype, device: torch.device) -> str:
    """Which weights of a model stored for a device will be made plain, in words; "" if none."""
    linears = [projection for projection in model.projections if projection.storage is not None]
    num_plain = sum(projection.num_made_plain > 0 for projection in linears)
    experts = any(mixture.num_made_plain_on(device, dtype) for _, mixture in model.mixtures())
    parts = [f"{num_plain} of {len(linears)} linears"] if num_plain else []
    return " and ".join(parts + (["the experts"] if experts else []))


def _store_experts(
    model: CausalLM,
    before: str,
    mixture: MixtureOfExperts,
    quantization: Quantization,
    dequantized: bool,
    except_for: Multiplies,
) -> set[str]:
    """Returns names of tensors that are not read."""
    storages, unread = [], set[str]()
    for parts in mixture.parts:
        names = [before + name for name in parts.names]
        scheme = _scheme(quantization, names)
        if scheme is None:
            continue
        _check_shards(model.parallel.size, quantization, scheme, names[0], parts.shards)
        storages.append(_storage(scheme, names, parts.out_features, parts.in_features))
        unread |= {f"{name}.{suffix}" for name in names for suffix in (*_unread(scheme), "bias")}
    if len(storages) == 1:
        raise ModelLoadError(
            f"config.json: quantization_config: some weights of {before}{mixture.names.experts} are quantized and some"
            " are not; use a checkpoint that quantizes all of them or none"
        )
    if storages:
        sizes = [(each.out_features[-1], each.in_features) for each in mixture.parts]
        form = storages[0].form
        is_made_plain = form == INT8 or (dequantized and not all(except_for(form, *size) for size in sizes))
        mixture.store(*storages, dequantized=is_made_plain)
    return unread


def _check_shares(
    num_ranks: int, quantization: Quantization, scheme: Scheme, names: Sequence[str], projection: Projection
) -> None:
    if isinstance(projection, Linear):
        _check_shards(num_ranks, quantization, scheme, names[0], list(filter(None, projection.weight_shards)))
    elif num_ranks > 1:
        raise _not_shared(num_ranks, quantization, names[0], "only an unquantized output head can be divided")


def _check_shards(
    num_ranks: int, quantization: Quantization, scheme: Scheme, name: str, shards: Sequence[Shard]
) -> None:
    try:
        for shard in shards if num_ranks > 1 else ():
            stored_shards(scheme, shard)
    except ValueError as fault:
        raise _not_shared(num_ranks, quantization, name, str(fault)) from None


def _not_shared(num_ranks: int, quantization: Quantization, name: str, why_not: str) -> ConfigError:
    return ConfigError(
        f"tensor-parallel-size: {num_ranks} ranks cannot share {name}, which is {quantization.name}: {why_not}"
    )


def _projections(model: CausalLM) -> Iterator[tuple[Sequence[str], Projection, Sequence[int], int]]:
    """(names of the parts, the projection, output features of the parts, input features) of each."""
    for block in model.block_linears():
        for names, linear, _ in block:
            yield names, linear, linear.out_features, linear.in_features
    for head in model.projections:
        if isinstance(head, OutputHead) and not head.is_tied:
            yield (HEAD_NAME,), head, (head.vocab_size,), head.hidden_size


def _scheme(quantization: Quantization, names: Sequence[str]) -> Scheme | None:
    schemes = [quantization.scheme_of(name) for name in names]
    for name, scheme in zip(names, schemes, strict=True):
        if scheme != schemes[0]:
            raise ModelLoadError(
                f"config.json: quantization_config treats {names[0]} and {name} differently, but they are merged"
                " into one matrix; use a checkpoint that quantizes both alike"
            )
    return schemes[0]


def _unread(scheme: Scheme) -> Sequence[str]:
    return _UNREAD_OF_INT8 if isinstance(scheme, Int8Scheme) else _UNREAD


def _storage(scheme: Scheme, names: Sequence[str], out_features: Sequence[int], in_features: int) -> WeightStorage:
    if isinstance(scheme, Fp8Scheme):
        if scheme.scales == "block" and in_features % scheme.block[1]:
            raise ModelLoadError(
                f"config.json: quantization_config: {names[0]}: {in_features} input features are not a multiple of the"
                f" block size {scheme.block[1]}"
            )
        return Fp8Storage(scheme, out_features, in_features)
    if isinstance(scheme, Int8Scheme):
        why_not = Int8Storage.why_not(scheme, in_features)
        if why_not is not None:
            raise ModelLoadError(f"config.json: quantization_config: {names[0]}: {why_not}")
        return Int8Storage(scheme, out_features, in_features)
    why_not = Int4Storage.why_not(scheme, out_features, in_features)
    if why_not is not None:
        raise ModelLoadError(f"config.json: quantization_config: {names[0]}: {why_not}")
    return Int4Storage(scheme, out_features, in_features)
