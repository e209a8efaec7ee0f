"""What a quantized weight is read into: tensors as a checkpoint has them. Once all are there, the weight is made from
them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from kernels.quantized_weight import QuantizedWeight, quantize_fp8_weight
from service.layers.shard import Shard


class Destination(Protocol):
    """Where a checkpoint's tensor goes: a tensor, or rows that are quantized as they come.

    dtype: a floating one takes bf16, fp16 and fp32; any other takes only itself. nbytes: how much it takes here.
    """

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def copy_(self, source: Tensor, /) -> object:
        """Of `shape`, on any device."""
        ...


class WeightStorage(nn.Module, ABC):
    """Its tensors are buffers with dtypes of their own (`CausalLM.materialize`). Only one thread at a time writes to a
    part.

    form: as in `Projection.shape_name`.
    """

    form: str

    @abstractmethod
    def checkpoint_tensors(self, names: Sequence[str]) -> dict[str, Destination]:
        """Its tensors by their names in a checkpoint. names: of the linear's parts."""

    @abstractmethod
    def checkpoint_shards(self, names: Sequence[str], shards: Sequence[Shard]) -> dict[str, Shard]:
        """For each of `checkpoint_tensors` that is a part of a stored tensor, which part. shards: of each of the
        linear's parts, in terms of its plain weight [out, in]."""

    @abstractmethod
    def finished(self, dtype: torch.dtype) -> QuantizedWeight:
        """The weight that has been read, to be multiplied by x of dtype. It may share memory with the storage's
        tensors."""


class QuantizedRows:
    """Rows of an fp8 weight, each with its own scale (kernels/quantized_weight.py). Rows of a plain matrix are
    quantized as they are written, so the plain matrix is never whole on the device. May also be the rows of several
    such weights: elements [E, N, K] and scales [E, N, 1]."""

    dtype = torch.float32
    """The dtype that it takes: any floating one."""

    def __init__(self, elements: Tensor, scales: Tensor, *, is_transposed: bool = False) -> None:
        self._elements = elements
        self._scales = scales
        self._is_transposed = is_transposed

    @property
    def shape(self) -> torch.Size:
        return self._elements.mT.shape if self._is_transposed else self._elements.shape

    @property
    def nbytes(self) -> int:
        return self._elements.nbytes + self._scales.nbytes

    @property
    def device(self) -> torch.device:
        return self._elements.device

    @property
    def mT(self) -> QuantizedRows:
        """The same rows, written as columns."""
        return QuantizedRows(self._elements, self._scales, is_transposed=not self._is_transposed)

    def __getitem__(self, index: int | tuple[int, slice]) -> QuantizedRows:
        """One of several matrices, or some of its rows."""
        return QuantizedRows(self._elements[index], self._scales[index])

    def copy_(self, source: Tensor) -> None:
        rows = source.to(self.device)
        rows = rows.mT if self._is_transposed else rows
        stacked = (t if t.dim() == 3 else t[None] for t in (self._elements, self._scales, rows))
        for elements, scales, matrix in zip(*stacked, strict=True):  # one by one: the way takes several times a matrix
            quantized = quantize_fp8_weight(matrix)
            elements.copy_(quantized[0])
            scales.copy_(quantized[1])
