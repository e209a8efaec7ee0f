"""A sum in one order, whatever layout a kernel's tensors have: halves are added, until one is left.

`tl.sum` adds in an order that follows from the layout, which is another one in each kernel. Of two numbers there is one
sum. Kernels that must give a row the same bits, by tiles of other sizes, sum by this.
"""

from __future__ import annotations

from typing import no_type_check

from kernels.optional_triton import tl, triton


@triton.jit
@no_type_check
def pairwise_sum(x):
    """x [N, M] -> [M]. N is a power of two up to 4096; zeros behind change nothing."""
    for _ in tl.static_range(12):
        if x.shape[0] > 1:
            x = tl.sum(tl.reshape(x, [2, x.shape[0] // 2, x.shape[1]]), 0)
    return tl.reshape(x, [x.shape[1]])


@triton.jit
@no_type_check
def pairwise_sums(x, STRIP: tl.constexpr):
    """x [M, N] -> [M, N / STRIP]: of each row, every STRIP columns. STRIP is a power of two up to 4096."""
    x = tl.reshape(x, [x.shape[0], x.shape[1] // STRIP, STRIP])
    for _ in tl.static_range(12):
        if x.shape[2] > 1:
            x = tl.sum(tl.reshape(x, [x.shape[0], x.shape[1], 2, x.shape[2] // 2]), 2)
    return tl.reshape(x, [x.shape[0], x.shape[1]])
