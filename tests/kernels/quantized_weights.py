"""Random quantized weights of every kind, and what they stand for, written down element by element."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from kernels.quantized_weight import QuantizedWeight, chunk_of, pack_int4, quantize_fp8

Kind = Literal["fp8", "fp8 groups", "int8", "int8 groups", "int4", "int4 symmetric", "int4 channels"]
KINDS: tuple[Kind, ...] = ("fp8", "fp8 groups", "int4", "int4 symmetric", "int4 channels")
"""Those that kernels for GPUs read."""
INT8_KINDS: tuple[Kind, ...] = ("int8", "int8 groups")


def random_weight(
    kind: Kind, features: int, size: int, dtype: torch.dtype, device: str = "cpu", group: int = 64
) -> tuple[QuantizedWeight, Tensor]:
    """The weight and its exact values, [N, K] fp64, both on the device. Values are of about 1 / sqrt(K)."""
    if kind == "fp8":
        elements, scales = quantize_fp8(torch.randn(features, size) * size**-0.5)
        return _on(device, elements, scales, None, dtype, elements.double() * scales.double())
    if kind.startswith("int8"):
        elements = torch.randint(-128, 128, (features, size), dtype=torch.int8)
        width = group if kind == "int8 groups" else size
        scales = (torch.rand(features, size // width) * size**-0.5 / 60).half()
        return _on(
            device, elements, scales, None, dtype, elements.double() * scales.double().repeat_interleave(width, 1)
        )
    if kind == "fp8 groups":
        elements = (torch.randn(features, size) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
        scales = torch.rand(features, size // group) * size**-0.5 / 100
        exact = elements.double() * scales.double().repeat_interleave(group, 1)
        return _on(device, elements, scales, None, dtype, exact)
    group = size if kind == "int4 channels" else group
    values = torch.randint(16, (features, size), dtype=torch.uint8)
    zeros = torch.randint(16, (features, size // group), dtype=torch.uint8) if kind == "int4" else None
    scales = (torch.rand(features, size // group) * size**-0.5 / 5).half()
    offset = torch.full_like(scales, 8.0).double() if zeros is None else zeros.double()
    exact = (values.double() - offset.repeat_interleave(group, 1)) * scales.double().repeat_interleave(group, 1)
    return _on(device, pack_int4(values, chunk_of(group)), scales, zeros, dtype, exact)


def _on(
    device: str, elements: Tensor, scales: Tensor, zeros: Tensor | None, dtype: torch.dtype, exact: Tensor
) -> tuple[QuantizedWeight, Tensor]:
    zeros = None if zeros is None else zeros.to(device)
    return QuantizedWeight(elements.to(device), scales.to(device), zeros, dtype), exact.to(device)
