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

    ranges: of indices along `dim`; the part has them one after another. None: the part is empty. size: of the whole
    tensor along `dim`.

    Example: ranges (0:4, 16:20) of size 32 make a part of size 8.
    """

    dim: int
    size: int
    ranges: tuple[range, ...]

    def of(self, whole: Tensor) -> Tensor:
        """The part."""
        parts = [whole.narrow(self.dim, part.start, len(part)) for part in self.ranges]
        return torch.cat(parts, self.dim) if len(parts) != 1 else parts[0]

    def whole_shape(self, part: Sequence[int]) -> tuple[int, ...]:
        """The shape of the whole tensor, given the shape of a part."""
        return *part[: self.dim], self.size, *part[self.dim + 1 :]

    def coarser(self, by: int) -> Shard | None:
        """The same part of a tensor that has one index along `dim` for every `by` of this one's, the last for what is
        left (a tensor of scales, say). None if a range begins or ends inside such an index."""
        if any(each.start % by or (each.stop % by and each.stop != self.size) for each in self.ranges):
            return None
        ranges = tuple(range(each.start // by, -(-each.stop // by)) for each in self.ranges)
        return replace(self, size=-(-self.size // by), ranges=ranges)

    def transposed(self) -> Shard:
        """The same part of a matrix that is stored transposed."""
        return replace(self, dim=1 - self.dim)


def even_share(size: int, parallel: TensorParallel) -> range:
    """This rank's part of `size` indices, which divide evenly."""
    assert size % parallel.size == 0, f"{size} does not divide by {parallel.size}"
    share = size // parallel.size
    return range(share * parallel.rank, share * (parallel.rank + 1))


def kv_head_share(num_kv_heads: int, parallel: TensorParallel) -> range:
    """The KV heads that this rank's even share of the query heads attends to. If there are fewer KV heads than ranks,
    each is on several ranks."""
    if parallel.size <= num_kv_heads:
        return even_share(num_kv_heads, parallel)
    assert parallel.size % num_kv_heads == 0
    first = parallel.rank // (parallel.size // num_kv_heads)
    return range(first, first + 1)


def vocab_share(vocab_size: int, parallel: TensorParallel) -> range:
    """This rank's ids, at least one: smaller vocabularies are refused before (service/models/rank_division.py)."""
    size = vocab_share_size(vocab_size, parallel.size)
    return range(size * parallel.rank, min(size * (parallel.rank + 1), vocab_size))


def local(of_whole: Sequence[range], first: int, size: int) -> tuple[range, ...]:
    """The parts of these ranges that fall on the `size` indices from `first` on, counted from `first`."""
    cut = (range(max(each.start - first, 0), min(each.stop - first, size)) for each in of_whole)
    return tuple(each for each in cut if each)
