"""What a quantized weight is read into: tensors as a checkpoint has them, of which the weight is made once all are
there."""

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

    dtype: a floating one takes bf16, fp16 and fp32; any other takes its own alone. nbytes: that it takes here.
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
    """Its tensors are buffers, of their own dtypes (`CausalLM.materialize`). One thread at a time writes to a part.

    form: as `Projection.shape_name` has it.
    """

    form: str

    @abstractmethod
    def checkpoint_tensors(self, names: Sequence[str]) -> dict[str, Destination]:
        """By their names in a checkpoint; names: of the linear's parts."""

    @abstractmethod
    def checkpoint_shards(self, names: Sequence[str], shards: Sequence[Shard]) -> dict[str, Shard]:
        """Of those of `checkpoint_tensors` that are parts of stored ones, which part; shards: of the linear's parts, of
        which each has some of its plain weight [out, in]."""

    @abstractmethod
    def finished(self, dtype: torch.dtype) -> QuantizedWeight:
        """What has been read, to be multiplied by x of dtype. The storage's own tensors may be a part of it."""


class QuantizedRows:
    """Rows of an fp8 weight, each with a scale of its own (kernels/quantized_weight.py): from a plain matrix they are
    quantized while they are written, so that the matrix is never whole on the device. Or the rows of several such,
    elements [E, N, K] and scales [E, N, 1].
    """

    dtype = torch.float32
    """What it takes: any floating type."""

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
        """The same rows, taken as columns."""
        return QuantizedRows(self._elements, self._scales, is_transposed=not self._is_transposed)

    def __getitem__(self, index: int | tuple[int, slice]) -> QuantizedRows:
        """Of several matrices one, or some of its rows."""
        return QuantizedRows(self._elements[index], self._scales[index])

    def copy_(self, source: Tensor) -> None:
        rows = source.to(self.device)
        rows = rows.mT if self._is_transposed else rows
        stacked = (t if t.dim() == 3 else t[None] for t in (self._elements, self._scales, rows))
        for elements, scales, matrix in zip(*stacked, strict=True):  # one by one: the way takes several times a matrix
            quantized = quantize_fp8_weight(matrix)
            elements.copy_(quantized[0])
            scales.copy_(quantized[1])
