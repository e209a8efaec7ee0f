"""Which parts of a quantized weight's stored tensors a rank has: the elements, scales and zeros of its part of the
weight.

Elements are packed in words, and scales and zeros belong to groups and blocks. None of these is cut: if a rank's part
would end inside one, that many ranks cannot share the weight.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.layers.shard import Shard
from service.models.quantization import A_WORD, INT8_IN_A_WORD, Fp8Scheme, Int4Scheme, Int8Scheme, Scheme


def stored_shards(scheme: Scheme, shard: Shard) -> dict[str, Shard]:
    """`shard`: the rank's part of the weight [out, in]. Returns the parts of the stored tensors, by their suffix to the
    linear's name; a tensor without an entry is whole on every rank. Raises ValueError with the numbers."""
    match scheme:
        case Fp8Scheme():
            return _fp8_shards(scheme, shard)
        case Int8Scheme():
            return _int8_shards(scheme, shard)
        case Int4Scheme():
            return _int4_shards(scheme, shard)


def named_shards(scheme: Scheme, names: Sequence[str], shards: Sequence[Shard]) -> dict[str, Shard]:
    """`stored_shards` of all parts of a linear, by their full names."""
    return {
        f"{name}.{suffix}": stored
        for name, shard in zip(names, shards, strict=True)
        for suffix, stored in stored_shards(scheme, shard).items()
    }


def _fp8_shards(scheme: Fp8Scheme, shard: Shard) -> dict[str, Shard]:
    shards = {"weight": shard}
    if scheme.scales == "channel" and shard.dim == 0:
        shards[scheme.scale_name] = shard
    if scheme.scales == "block":
        shards[scheme.scale_name] = _whole(shard, scheme.block[shard.dim], "blocks")
    return shards


def _int4_shards(scheme: Int4Scheme, shard: Shard) -> dict[str, Shard]:
    elements, zeros, scales = scheme.tensor_names
    words = _whole(shard, A_WORD, "words")
    if shard.dim == 0:
        shards = {elements: words if scheme.layout == "awq" else shard, zeros: words, scales: shard}
    else:
        shards = {elements: shard if scheme.layout == "awq" else words}
        if scheme.group_size is not None:
            groups = _whole(shard, scheme.group_size, "groups")
            shards |= {zeros: groups, scales: groups}
    return shards if scheme.layout == "packed" else {name: each.transposed() for name, each in shards.items()}


def _int8_shards(scheme: Int8Scheme, shard: Shard) -> dict[str, Shard]:
    elements, scales = scheme.tensor_names
    shards = {elements: shard}
    if shard.dim == 1 and scheme.layout != "bytes":
        shards[elements] = _whole(shard, INT8_IN_A_WORD, "words")
    if shard.dim == 0 and not scheme.is_of_tensor:
        shards[scales] = shard
    if shard.dim == 1 and scheme.group_size is not None:
        shards[scales] = _whole(shard, scheme.group_size, "groups")
    return {name: each.transposed() for name, each in shards.items()} if scheme.layout == "gptq" else shards


def _whole(shard: Shard, by: int, what: str) -> Shard:
    coarser = shard.coarser(by)
    if coarser is None:
        own, features = sum(map(len, shard.ranges)), ("output", "input")[shard.dim]
        raise ValueError(f"a rank's {own} of {shard.size} {features} features are not a whole number of {what} of {by}")
    return coarser
