"""Sums in a fixed order, whatever the layout of a kernel's tensors: halves are added until one element is left.

    a0 a1 a2 a3  ->  (a0 + a2) (a1 + a3)  ->  (a0 + a2) + (a1 + a3)

`tl.sum` adds in an order that follows from the layout, and each kernel has another layout. A sum of two numbers has
only one order. Kernels that must give a row the same bits although their tiles differ sum this way.
"""

from __future__ import annotations

from typing import no_type_check

from kernels.optional_triton import tl, triton


@triton.jit
@no_type_check
def pairwise_sum(x):
    """x [N, M] -> [M]. N is a power of two up to 4096; zeros at the end change nothing."""
    return tl.reshape(pairwise_column_sums(x, x.shape[0]), [x.shape[1]])


@triton.jit
@no_type_check
def pairwise_column_sums(x, STRIP: tl.constexpr):
    """x [N, M] -> [N / STRIP, M]: for each column, the sum of every STRIP rows. N >= STRIP, and STRIP is a power of two
    up to 4096."""
    x = tl.reshape(x, [x.shape[0] // STRIP, STRIP, x.shape[1]])
    for _ in tl.static_range(12):
        if x.shape[1] > 1:
            x = tl.sum(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2, x.shape[2]]), 1)
    return tl.reshape(x, [x.shape[0], x.shape[2]])


@triton.jit
@no_type_check
def column_strips(x):
    """x [N, M] -> [N / 64, M]: for each column, the sum of every 64 rows, as two sums of 32. [1, M] if N is 32."""
    sums = pairwise_column_sums(x, 32)
    if x.shape[0] > 32:
        sums = tl.sum(tl.reshape(sums, [x.shape[0] // 64, 2, x.shape[1]]), 1)
    return sums


@triton.jit
@no_type_check
def row_strips(x):
    """x [M, N] -> [M, N / 64]: for each row, the sum of every 64 columns, as two sums of 32. [M, 1] if N is 32."""
    sums = pairwise_sums(x, 32)
    if x.shape[1] > 32:
        sums = tl.sum(tl.reshape(sums, [x.shape[0], x.shape[1] // 64, 2]), 2)
    return sums


@triton.jit
@no_type_check
def pairwise_sums(x, STRIP: tl.constexpr):
    """x [M, N] -> [M, N / STRIP]: for each row, the sum of every STRIP columns. STRIP is a power of two up to 4096."""
    x = tl.reshape(x, [x.shape[0], x.shape[1] // STRIP, STRIP])
    for _ in tl.static_range(12):
        if x.shape[2] > 1:
            x = tl.sum(tl.reshape(x, [x.shape[0], x.shape[1], 2, x.shape[2] // 2]), 2)
    return tl.reshape(x, [x.shape[0], x.shape[1]])
