"""Spare rows after a tensor's own: they hold anything and may be read. A TMA tile of rows that are partly outside a
tensor takes up to twice as long. So tensors of few rows are made with room for spare rows, and a kernel that multiplies
them by tiles need not copy them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.skinny_config import MAX_ROWS


def empty_with_spare_rows(shape: Sequence[int], like: Tensor) -> Tensor:
    """Contiguous, with room for at least MAX_ROWS rows in its storage."""
    num_rows, *sizes = shape
    return torch.empty((max(num_rows, MAX_ROWS), *sizes), dtype=like.dtype, device=like.device)[:num_rows]


def with_spare_rows(x: Tensor, num_rows: int) -> Tensor:
    """x [M, K] as [num_rows, K], whose first M rows are x's; a copy if x's storage has no room."""
    if num_rows <= len(x):
        return x
    room = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
    if (num_rows - 1) * x.stride(0) + x.shape[1] <= room:
        return x.as_strided((num_rows, x.shape[1]), x.stride())
    return F.pad(x, (0, 0, 0, num_rows - len(x)))
