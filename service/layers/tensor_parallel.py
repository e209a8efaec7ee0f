"""Tensor parallelism: the ranks that compute every layer together, each with its part of every weight.

Megatron-LM (Shoeybi et al. 2019), which is ORCA's intra-layer parallelism: of each pair of products the first is
divided by its outputs (query, key and value by heads; gate and up), the second by its inputs, and what the ranks get of
the second is summed. So a block costs two sums over the ranks, and nothing else is exchanged.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from kernels.rms_norm import add_rms_norm
from service.layers.overlapped_sum import ArrivingRows, arrived


class TensorParallel(Protocol):
    """A rank's place among `size`, and what they exchange.

    All ranks call the same methods in the same order, with tensors of the same shape and dtype; whoever does not, hangs
    the others. One thread at a time. Raises what torch.distributed raises where a rank is gone.
    """

    @property
    def rank(self) -> int:
        """From 0."""
        ...

    @property
    def size(self) -> int: ...

    @property
    def overlap_tokens(self) -> int:
        """From so many rows on a sum that is added and normed runs beside products (`begin_add_norm`); 0: never."""
        ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, of its shape and dtype and with the same bits on every rank. x is given up: it may
        be overwritten, and the sum may lie in it."""
        ...

    def all_reduce_add_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """What kernels/rms_norm.py's add_rms_norm makes of the sum of all ranks' x, [T, C]: (norm, sum with residual).
        x and residual are given up."""
        ...

    def begin_add_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> ArrivingRows:
        """The norm that `all_reduce_add_norm` returns, beside what is launched next on the current stream; its sum with
        the residual takes the residual's storage. All that was begun is waited for before anything else is exchanged,
        but for another `begin_add_norm`."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """[size, *x.shape]: every rank's x, in the order of ranks. x is kept."""
        ...

    def least(self, number: int) -> int:
        """The least of all ranks' numbers. At start: it waits for the slowest."""
        ...

    def of_first(self, text: str) -> str:
        """Rank 0's text; that of the others is not looked at. At start, likewise."""
        ...


class Alone:
    """The one rank of a model that is not divided."""

    rank = 0
    size = 1
    overlap_tokens = 0

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_reduce_add_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, eps)

    def begin_add_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> ArrivingRows:
        return arrived(x, residual, *self.all_reduce_add_norm(x, residual, weight, eps))

    def all_gather(self, x: Tensor) -> Tensor:
        return x[None]

    def least(self, number: int) -> int:
        return number

    def of_first(self, text: str) -> str:
        return text


ALONE = Alone()


class Silent(Alone):
    """The first of `size` ranks without the others: what is exchanged has the right shape, and any values."""

    def __init__(self, size: int) -> None:
        self.size = size

    def all_gather(self, x: Tensor) -> Tensor:
        return x.new_empty(self.size, *x.shape)


class Planned(Alone):
    """The first of `size` ranks that are not there: nothing is computed by it, but what it would hold is counted."""

    def __init__(self, size: int) -> None:
        self.size = size
