"""Gradient of the gated activation of a merged gate-up projection (kernels/silu_and_mul.py), and its value again.

    gate, up = x[t, i], x[t, I + i];  s = 1 / (1 + exp(-gate))
    out[t, i] = gate * s * up
    x_grad[t, i] = grad * up * s * (1 + gate * (1 - s));  x_grad[t, I + i] = grad * gate * s

Tensors (T tokens, I intermediate size):
    grad     [T, I]      bf16 or fp32, contiguous
    x        [T, 2 * I]  like grad: gate, then up. Overwritten by x_grad
    returns  out, [T, I] like grad, contiguous, new

Training keeps x and recomputes the activation. One pass makes both. Rounding: fp32 inside, each rounded once. T may be
0.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

_BLOCK = 1024


def silu_and_mul_backward_reference(grad: Tensor, x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    gate, up = x[:, :half].float(), x[:, half:].float()
    sigmoid = gate.sigmoid()
    activated = gate * sigmoid
    # s * (1 + gate * (1 - s)) = s + activated * (1 - s)
    slope = torch.addcmul(sigmoid + activated, activated, sigmoid, value=-1)
    out = (activated * up).to(x.dtype)
    x[:, :half] = slope.mul_(up).mul_(grad)
    x[:, half:] = activated.mul_(grad)
    return out


@triton.jit
@no_type_check
def _silu_and_mul_backward_kernel(grad_ptr, x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    """Program (token, piece of the row)."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_column = column < size
    gate_ptr = x_ptr + token * 2 * size + column
    grad = tl.load(grad_ptr + token * size + column, mask=is_column, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr, mask=is_column, other=0.0).to(tl.float32)
    up = tl.load(gate_ptr + size, mask=is_column, other=0.0).to(tl.float32)
    sigmoid = 1 / (1 + tl.exp(-gate))
    activated = gate * sigmoid
    dtype = out_ptr.dtype.element_ty
    tl.store(out_ptr + token * size + column, (activated * up).to(dtype), mask=is_column)
    gate_grad = grad * up * (sigmoid + activated * (1 - sigmoid))
    tl.store(gate_ptr, gate_grad.to(dtype), mask=is_column)
    tl.store(gate_ptr + size, (grad * activated).to(dtype), mask=is_column)


def silu_and_mul_backward_triton(grad: Tensor, x: Tensor) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_tokens, width = x.shape
    assert x.is_contiguous() and grad.is_contiguous() and grad.shape == (num_tokens, width // 2)
    out = torch.empty_like(grad)
    if out.numel():
        grid = (num_tokens, triton.cdiv(width // 2, _BLOCK))
        _silu_and_mul_backward_kernel[grid](grad, x, out, width // 2, BLOCK=_BLOCK, num_warps=4)
    return out


def silu_and_mul_backward(grad: Tensor, x: Tensor) -> Tensor:
    return silu_and_mul_backward_triton(grad, x) if x.is_cuda else silu_and_mul_backward_reference(grad, x)
