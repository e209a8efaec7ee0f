"""Gated activation of a merged gate-up projection (SwiGLU, Shazeer 2020).

    out[t, i] = silu(x[t, i]) * x[t, I + i]        silu(z) = z / (1 + exp(-z))

Tensors (T tokens, I intermediate size):
    x        [T, 2 * I]  bf16 or fp32, contiguous: gate, then up
    returns  [T, I]      like x, contiguous, new

Rounding: the kernel and a CPU's compiled loop compute in fp32 and round once; the reference also rounds silu(gate) to
x's dtype, as transformers does. T may be 0. The reference is differentiable.
"""

from __future__ import annotations

from typing import no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.cpu_loops import loops_for
from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import tl, triton

_BLOCK = 1024  # 4 warps; in bf16 one 16-byte load of gate and of up per thread


def silu_and_mul_reference(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return F.silu(x[:, :half]) * x[:, half:]


@triton.jit
@no_type_check
def _silu_and_mul_kernel(x_ptr, out_ptr, size, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Program (token, piece of the row)."""
    wait_for_inputs(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < size
    gate = tl.load(x_ptr + token * 2 * size + column, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + token * 2 * size + size + column, mask=is_column, other=0.0).to(tl.float32)
    out = gate / (1 + tl.exp(-gate)) * up
    tl.store(out_ptr + token * size + column, out.to(out_ptr.dtype.element_ty), mask=is_column)


def silu_and_mul_triton(x: Tensor) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_tokens, width = x.shape
    assert x.is_contiguous() and width % 2 == 0
    out = torch.empty((num_tokens, width // 2), dtype=x.dtype, device=x.device)
    if out.numel():
        grid = (num_tokens, triton.cdiv(width // 2, _BLOCK))
        _silu_and_mul_kernel[grid](x, out, width // 2, BLOCK=_BLOCK, num_warps=4, **dependent_launch(x.device))
    return out


def silu_and_mul(x: Tensor) -> Tensor:
    if not x.is_cuda:  # no checks: torch makes its own, and on a CPU they would take time of the step
        loops = loops_for(x)
        return silu_and_mul_reference(x) if loops is None else loops.silu_and_mul(x)
    return silu_and_mul_triton(x)
