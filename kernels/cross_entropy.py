"""Cross-entropy of rows of logits with its gradient, which overwrites the logits.

    lse[n] = log sum over v of exp(x[n, v])
    loss[n] = lse[n] - x[n, target[n]];  hit[n]: x[n, target[n]] is the first of the greatest
    x[n, v] becomes gradient_scale * (exp(x[n, v] - lse[n]) - (1 if v == target[n] else 0))

Tensors (N tokens, V vocabulary):
    logits   [N, V]  bf16 or fp32, contiguous; overwritten by its gradient, unless gradient_scale is None
    targets  [N]     int64, contiguous, 0 <= target < V
    returns  (losses [N] fp32, hits [N] bool), new

Rounding: fp32 inside, gradients rounded once when written. N may be 0. The kernel reads a row twice and writes it once;
torch's operators take some ten passes over rows in fp32 (after Liger Kernel, Hsu et al. 2024).
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

_BLOCK = 4096  # 8 warps, two 16-byte loads a thread in bf16


def cross_entropy_reference(logits: Tensor, targets: Tensor, gradient_scale: float | None) -> tuple[Tensor, Tensor]:
    targets = targets[:, None]
    exact = logits.float()
    lse = torch.logsumexp(exact, dim=-1, keepdim=True)
    losses = (lse - exact.gather(1, targets)).squeeze(1)
    hits = (exact.argmax(-1, keepdim=True) == targets).squeeze(1)
    if gradient_scale is not None:
        probabilities = exact.sub_(lse).exp_()  # for fp32 logits this is already in place
        probabilities.scatter_add_(1, targets, exact.new_full((1, 1), -1.0).expand_as(targets))
        logits.copy_(probabilities.mul_(gradient_scale))
    return losses, hits


@triton.jit
@no_type_check
def _cross_entropy_kernel(
    logits_ptr,
    targets_ptr,
    losses_ptr,
    hits_ptr,
    size,
    gradient_scale,
    WITH_GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Program: one row."""
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * size
    target = tl.load(targets_ptr + row)
    of_target = tl.load(logits_ptr + target).to(tl.float32)
    highest = of_target
    first_highest = target.to(tl.int32)
    total = 0.0
    for start in range(0, size, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + column, mask=column < size, other=-float("inf")).to(tl.float32)
        block_highest = tl.max(x, 0)
        first = tl.min(tl.where(x == block_highest, column, size), 0)
        is_higher = block_highest > highest
        is_first = is_higher | ((block_highest == highest) & (first < first_highest))
        first_highest = tl.where(is_first, first, first_highest)
        new_highest = tl.where(is_higher, block_highest, highest)
        total = total * tl.exp(highest - new_highest) + tl.sum(tl.exp(x - new_highest), 0)
        highest = new_highest
    lse = highest + tl.log(total)
    tl.store(losses_ptr + row, lse - of_target)
    tl.store(hits_ptr + row, first_highest == target)
    if WITH_GRADIENT:
        dtype = logits_ptr.dtype.element_ty
        for start in range(0, size, BLOCK):
            column = start + tl.arange(0, BLOCK)
            is_column = column < size
            x = tl.load(logits_ptr + column, mask=is_column, other=0.0).to(tl.float32)
            gradient = tl.exp(x - lse) - tl.where(column == target, 1.0, 0.0)
            tl.store(logits_ptr + column, (gradient * gradient_scale).to(dtype), mask=is_column)


def cross_entropy_triton(logits: Tensor, targets: Tensor, gradient_scale: float | None) -> tuple[Tensor, Tensor]:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_rows, size = logits.shape
    assert logits.is_contiguous() and targets.is_contiguous() and targets.shape == (num_rows,)
    assert targets.dtype == torch.int64 and size >= 1
    losses = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    hits = torch.empty(num_rows, dtype=torch.bool, device=logits.device)
    if num_rows:
        _cross_entropy_kernel[(num_rows,)](
            logits,
            targets,
            losses,
            hits,
            size,
            0.0 if gradient_scale is None else gradient_scale,
            WITH_GRADIENT=gradient_scale is not None,
            BLOCK=min(_BLOCK, triton.next_power_of_2(size)),
            num_warps=8,
        )
    return losses, hits


def cross_entropy(logits: Tensor, targets: Tensor, gradient_scale: float | None) -> tuple[Tensor, Tensor]:
    if not logits.is_cuda:
        return cross_entropy_reference(logits, targets, gradient_scale)
    return cross_entropy_triton(logits, targets, gradient_scale)
