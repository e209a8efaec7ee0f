"""A weight matrix of 8-bit or 4-bit elements, with the scales and zeros that turn them into numbers.

    fp8     weight[n, k] = scales[n, g] * elements[n, k]
    int8    weight[n, k] = scales[n, g] * elements[n, k]            on CPUs alone: no kernel for GPUs reads it
    int4    weight[n, k] = scales[n, g] * (element(n, k) - zeros[n, g])        g = k // (K / G)

Tensors (N output features, K input features, G groups of K / G adjacent input features):
    elements  [N, K]      float8_e4m3fn or int8, contiguous; or
              [N, K / 2]  uint8, contiguous: int4, from 0 to 15, in chunks of `chunk` input features. Byte j of a chunk
                          holds its element j (low half) and its element j + chunk / 2 (high half), so that a kernel
                          gets two tiles of adjacent elements without a shuffle.
    scales    [N, G]      fp32, bf16 or fp16, contiguous. G = 1: one scale per channel
    zeros     [N, G]      uint8, contiguous, int4 only. None: 8 everywhere (symmetric). fp8 and int8 have none

A group is all of K, or a power of two of at least 16 input features; for int4 a multiple of 32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0
SYMMETRIC_ZERO = 8
SMALLEST = 1e-12
"""Least maximum of a row, because a row of zeros has no largest element to divide by."""
_SCALES_TRIED = 8
_MOST_CHUNK, LEAST_CHUNK = 128, 32


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """dtype: of x and of the product. The tensors are as in this file's contract."""

    elements: Tensor
    scales: Tensor
    zeros: Tensor | None
    dtype: torch.dtype

    def __post_init__(self) -> None:
        assert self.elements.is_contiguous() and self.scales.is_contiguous()
        assert self.elements.dtype in (FP8, torch.int8, torch.uint8) and self.scales.shape[0] == self.elements.shape[0]
        assert self.zeros is None or (self.is_int4 and self.zeros.shape == self.scales.shape)
        assert self.zeros is None or (self.zeros.dtype == torch.uint8 and self.zeros.is_contiguous())
        assert self.shape[1] % self.scales.shape[1] == 0

    @property
    def is_int4(self) -> bool:
        return self.elements.dtype == torch.uint8

    @property
    def is_int8(self) -> bool:
        return self.elements.dtype == torch.int8

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        num_features, width = self.elements.shape
        return num_features, 2 * width if self.is_int4 else width

    @property
    def group_size(self) -> int:
        """Input features that share a scale: K if a channel has only one."""
        return self.shape[1] // self.scales.shape[1]

    @property
    def chunk(self) -> int:
        """For int4."""
        return chunk_of(self.group_size)

    @property
    def device(self) -> torch.device:
        return self.elements.device

    @property
    def is_cuda(self) -> bool:
        return self.elements.is_cuda

    @property
    def nbytes(self) -> int:
        return self.elements.nbytes + self.scales.nbytes + (0 if self.zeros is None else self.zeros.nbytes)

    def new_empty(self, *shape: int) -> Tensor:
        """An empty tensor of `dtype`, the dtype of x, like Tensor.new_empty."""
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def dequantized(self) -> Tensor:
        """[N, K] in `dtype`, rounded once; by torch."""
        num_features, size = self.shape
        by_group = (num_features, self.scales.shape[1], self.group_size)
        values = unpack_int4(self.elements, self.chunk) if self.is_int4 else self.elements
        exact = values.float().view(by_group)
        if self.is_int4:
            exact = exact - (SYMMETRIC_ZERO if self.zeros is None else self.zeros.float()[:, :, None])
        return (exact * self.scales.float()[:, :, None]).view(num_features, size).to(self.dtype)


Weight = Tensor | QuantizedWeight
"""[N, K]: what linear kernels take. Both have shape, dtype, device, is_cuda, nbytes and new_empty."""


def dense(weight: Weight) -> Tensor:
    """The plain matrix; for the references."""
    return weight if isinstance(weight, Tensor) else weight.dequantized()


def quantize_fp8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Rows [N, K] -> (elements [N, K] e4m3, scales [N, 1] fp32): a row's largest element becomes 448."""
    exact = weight.float()
    scales = exact.abs().amax(-1, keepdim=True).clamp_(min=SMALLEST).div_(FP8_MAX)
    return (exact / scales).to(FP8), scales


def quantize_fp8_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Like `quantize_fp8`, but each row gets the best of eight scales, up to twice as large: the one with the smallest
    squared error. Where elements fall between two fp8 numbers is practically random, so one of eight trials is luckier.
    For normally distributed rows that saves a tenth of the squared error."""
    exact = weight.float()
    least = exact.abs().amax(-1, keepdim=True).clamp_(min=SMALLEST).div_(FP8_MAX)
    best, scales = torch.full_like(least, float("inf")), least
    for step in range(_SCALES_TRIED):
        tried = least * 2 ** (step / _SCALES_TRIED)
        error = ((exact / tried).to(FP8).float() * tried - exact).square_().sum(-1, keepdim=True)
        scales = torch.where(error < best, tried, scales)
        best = torch.minimum(error, best)
    return (exact / scales).to(FP8), scales


def chunk_of(group_size: int) -> int:
    """The chunk size in which int4 elements with such groups are packed; 0 if they cannot be."""
    chunk = min(group_size & -group_size, _MOST_CHUNK)
    return chunk if chunk >= LEAST_CHUNK else 0


def pack_int4(values: Tensor, chunk: int) -> Tensor:
    """[N, K] uint8 from 0 to 15 -> [N, K / 2] uint8."""
    num_features, size = values.shape
    halves = values.view(num_features, size // chunk, 2, chunk // 2)
    return (halves[:, :, 0] | halves[:, :, 1] << 4).reshape(num_features, size // 2)


def unpack_int4(elements: Tensor, chunk: int) -> Tensor:
    """[N, K / 2] uint8 -> [N, K] uint8 from 0 to 15: the inverse of `pack_int4`."""
    num_features, width = elements.shape
    packed = elements.view(num_features, 2 * width // chunk, chunk // 2)
    return torch.stack((packed & 15, packed >> 4), 2).view(num_features, 2 * width)
