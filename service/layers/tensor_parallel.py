"""Tensor parallelism: several ranks compute every layer together, each with a part of every weight.

As in Megatron-LM (Shoeybi et al. 2019); ORCA calls it intra-layer parallelism. In each pair of linears the first is
split by output features (query, key and value by heads; gate and up), the second by input features, and an all-reduce
sums the second one's outputs. So a block costs two all-reduces and no other exchange.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from kernels.rms_norm import add_rms_norm


class TensorParallel(Protocol):
    """One rank among `size`, and its exchanges with the others.

    All ranks must call the same methods in the same order, with tensors of the same shape and dtype; otherwise they
    wait for each other forever. One thread at a time. If a rank is gone, methods raise what torch.distributed raises.
    """

    @property
    def rank(self) -> int:
        """From 0."""
        ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x, with x's shape and dtype and the same bits on every rank. x is consumed: the sum may
        take its storage."""
        ...

    def all_reduce_add_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """add_rms_norm (kernels/rms_norm.py) of the sum of all ranks' x, [T, C]: (norm, sum plus residual). x and
        residual are consumed."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """[size, *x.shape]: every rank's x, in rank order. x is left as it is."""
        ...

    def least(self, number: int) -> int:
        """The minimum of all ranks' numbers. For startup: it waits for the slowest rank."""
        ...

    def of_first(self, text: str) -> str:
        """Rank 0's text, on every rank. For startup."""
        ...


class Alone:
    """The only rank of an undivided model."""

    rank = 0
    size = 1

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_reduce_add_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, eps)

    def all_gather(self, x: Tensor) -> Tensor:
        return x[None]

    def least(self, number: int) -> int:
        return number

    def of_first(self, text: str) -> str:
        return text


ALONE = Alone()


class Silent(Alone):
    """The first of `size` ranks, without the others: exchanges return the right shapes and arbitrary values."""

    def __init__(self, size: int) -> None:
        self.size = size

    def all_gather(self, x: Tensor) -> Tensor:
        return x.new_empty(self.size, *x.shape)


class Planned(Alone):
    """The first of `size` ranks that do not exist: only for counting what a rank would hold."""

    def __init__(self, size: int) -> None:
        self.size = size
