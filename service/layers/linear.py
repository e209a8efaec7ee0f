"""Linear projections; several may be merged into one matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from service.layers.linear_method import Activated
from service.layers.projection import Projection, shape_name
from service.layers.shard import Shard, local
from service.layers.tensor_parallel import TensorParallel
from service.layers.weight_storage import Destination


class Product(NamedTuple):
    """linear(x), [T, size], before it is computed; the consumer may fuse it with the next operation."""

    linear: Linear
    x: Activated

    def value(self) -> Tensor:
        return self.linear(self.x)


class Linear(Projection):
    """y = x W^T + b for x [T, in_features]; merged linears have several output parts side by side (q, k, v or gate,
    up).

    weight  [sum(out_features), in_features], none if it is quantized; bias [sum(out_features)] or None.
    """

    weight: nn.Parameter

    def __init__(self, in_features: int, *out_features: int, bias: bool = False) -> None:
        super().__init__(sum(out_features), in_features)
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(sum(out_features), in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(sum(out_features)), requires_grad=False) if bias else None
        self._weight_shards: tuple[Shard, ...] = ()
        self._bias_shards: tuple[Shard, ...] = ()

    def shard_outputs(self, *kept: range) -> None:
        """Keep only these outputs of the merged matrix, some of each part. Called before there is memory."""
        firsts = _starts(self.out_features)
        parts = [local(kept, first, size) for first, size in zip(firsts, self.out_features, strict=True)]
        self._weight_shards = tuple(Shard(0, size, part) for size, part in zip(self.out_features, parts, strict=True))
        self._bias_shards = self._weight_shards if self.bias is not None else ()
        self.out_features = tuple(sum(map(len, part)) for part in parts)
        self._become(sum(self.out_features), self.in_features)

    def shard_inputs(self, kept: range, parallel: TensorParallel) -> None:
        """Keep only these inputs, and sum the products over the ranks. Rank 0 adds the bias. Called before there is
        memory."""
        self._weight_shards = tuple(Shard(1, self.in_features, (kept,)) for _ in self.out_features)
        if self.bias is not None and parallel.rank > 0:
            self._bias_shards = tuple(Shard(0, size, ()) for size in self.out_features)
            self.bias = None
        self._summed_over = parallel
        self.in_features = len(kept)
        self._become(sum(self.out_features), self.in_features)

    def _become(self, out_features: int, in_features: int) -> None:
        self.shape_name = shape_name(out_features, in_features)
        self.weight = nn.Parameter(self.weight.new_empty(out_features, in_features), requires_grad=False)
        if self.bias is not None:
            self.bias = nn.Parameter(self.weight.new_empty(out_features), requires_grad=False)

    @property
    def plain_weight(self) -> Tensor:
        return self.weight

    def checkpoint_tensors(self, *names: str) -> dict[str, Destination]:
        """The parts under their checkpoint names: writing to one fills its rows of the merged matrix."""
        assert len(names) == len(self.out_features)
        tensors: dict[str, Destination] = {}
        if self.storage is not None:
            tensors |= self.storage.checkpoint_tensors(names)
        else:
            parts = torch.split(self.weight.detach(), list(self.out_features))
            tensors |= {f"{name}.weight": part for name, part in zip(names, parts, strict=True)}
        if self.bias is not None:
            parts = torch.split(self.bias.detach(), list(self.out_features))
            tensors |= {f"{name}.bias": part for name, part in zip(names, parts, strict=True)}
        elif self._bias_shards:  # another rank adds it
            tensors |= {f"{name}.bias": self.weight.new_empty(0) for name in names}
        return tensors

    @property
    def weight_shards(self) -> Sequence[Shard | None]:
        """For each part's weight, the shard that this rank has; None: all of it."""
        return self._weight_shards or (None,) * len(self.out_features)

    def checkpoint_shards(self, *names: str) -> dict[str, Shard]:
        """For each of `checkpoint_tensors` that is a part of a stored tensor, which part."""
        biases = {f"{name}.bias": shard for name, shard in zip(names, self._bias_shards, strict=False)}
        if self.storage is not None and self._weight_shards:
            return biases | self.storage.checkpoint_shards(names, self._weight_shards)
        return biases | {f"{name}.weight": shard for name, shard in zip(names, self._weight_shards, strict=False)}

    def _give_up_plain_weight(self) -> None:
        del self.weight

    def _has_plain_weight(self) -> bool:
        return "weight" in self._parameters


class NamedLinear(NamedTuple):
    """A linear of a block, as checkpoints and adapters name it.

    names: of its output parts, in their order. reads_rows: it gets only the rows whose output is computed
    (`AttentionInputs.rows`): all linears after a block's attention.
    """

    names: tuple[str, ...]
    linear: Linear
    reads_rows: bool = True

    def below(self, prefix: str) -> NamedLinear:
        """The same with `prefix` before each name."""
        return self._replace(names=tuple(prefix + name for name in self.names))


def _starts(sizes: Iterable[int]) -> Iterator[int]:
    start = 0
    for size in sizes:
        yield start
        start += size


def linear_tensors(linears: Iterable[NamedLinear]) -> dict[str, Destination]:
    """`checkpoint_tensors` of all of them."""
    return {name: part for names, linear, _ in linears for name, part in linear.checkpoint_tensors(*names).items()}
