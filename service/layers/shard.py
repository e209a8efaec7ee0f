"""Which part of each weight a rank has (tensor_parallel.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from service.layers.tensor_parallel import TensorParallel
from service.layers.vocab_division import vocab_share_size


@dataclass(frozen=True, slots=True)
class Shard:
    """A rank's part of a tensor.

    ranges: of indices along `dim`, which lie one behind another in the part; none: the part is empty. size: of the
    whole tensor along `dim`.
    """

    dim: int
    size: int
    ranges: tuple[range, ...]

    def of(self, whole: Tensor) -> Tensor:
        """The part."""
        parts = [whole.narrow(self.dim, part.start, len(part)) for part in self.ranges]
        return torch.cat(parts, self.dim) if len(parts) != 1 else parts[0]

    def whole_shape(self, part: Sequence[int]) -> tuple[int, ...]:
        """Of the tensor of which something of the shape `part` is the part."""
        return *part[: self.dim], self.size, *part[self.dim + 1 :]

    def coarser(self, by: int) -> Shard | None:
        """The same of a tensor whose indices along `dim` stand for `by` of this one's each, the last for what is left;
        None where a range begins or ends within one."""
        if any(each.start % by or (each.stop % by and each.stop != self.size) for each in self.ranges):
            return None
        ranges = tuple(range(each.start // by, -(-each.stop // by)) for each in self.ranges)
        return replace(self, size=-(-self.size // by), ranges=ranges)

    def transposed(self) -> Shard:
        """The same of a matrix that is stored the other way round."""
        return replace(self, dim=1 - self.dim)


def even_share(size: int, parallel: TensorParallel) -> range:
    """This rank's of `size` indices that divide evenly."""
    assert size % parallel.size == 0, f"{size} does not divide by {parallel.size}"
    share = size // parallel.size
    return range(share * parallel.rank, share * (parallel.rank + 1))


def kv_head_share(num_kv_heads: int, parallel: TensorParallel) -> range:
    """Those that this rank's even share of the query heads attends to; each is on several ranks where there are fewer
    of them than ranks."""
    if parallel.size <= num_kv_heads:
        return even_share(num_kv_heads, parallel)
    assert parallel.size % num_kv_heads == 0
    first = parallel.rank // (parallel.size // num_kv_heads)
    return range(first, first + 1)


def vocab_share(vocab_size: int, parallel: TensorParallel) -> range:
    """This rank's ids, one at least: fewer are refused before (service/models/rank_division.py)."""
    size = vocab_share_size(vocab_size, parallel.size)
    return range(size * parallel.rank, min(size * (parallel.rank + 1), vocab_size))


def local(of_whole: Sequence[range], first: int, size: int) -> tuple[range, ...]:
    """Of these ranges what falls on the `size` indices from `first` on, counted from there."""
    cut = (range(max(each.start - first, 0), min(each.stop - first, size)) for each in of_whole)
    return tuple(each for each in cut if each)
