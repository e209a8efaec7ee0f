"""The largest logit of every 128 tokens. Sampling looks at these first, so that it need not read all logits again.

    out[n, j] = max(logits[n, 128 * j : 128 * j + 128]);  +inf if there is a NaN among them

Tensors (N rows, V vocabulary, G = ceil(V / 128) groups):
    logits   [N, V]  bf16 or fp32, last stride 1; read only
    returns  [N, G]  fp32, new

Exact. A row's result does not depend on the other rows. N may be 0.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.optional_triton import tl, triton

GROUP = 128
_GROUPS_PER_PROGRAM = 32  # 4096 logits: 4 warps, four 16-byte loads a thread in bf16


def group_max_reference(logits: Tensor) -> Tensor:
    numbers = logits.float().nan_to_num(math.inf, posinf=math.inf, neginf=-math.inf)
    padded = F.pad(numbers, (0, -logits.shape[-1] % GROUP), value=-math.inf)
    return padded.view(len(logits), padded.shape[-1] // GROUP, GROUP).amax(-1)


@triton.jit
@no_type_check
def _group_max_kernel(logits_ptr, out_ptr, stride_row, size, num_groups, GROUP: tl.constexpr, GROUPS: tl.constexpr):
    """Program (row, GROUPS groups)."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    token = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    logits = tl.load(logits_ptr + row * stride_row + token, mask=token < size, other=float("-inf")).to(tl.float32)
    largest = tl.max(tl.where(logits == logits, logits, float("inf")), 1)
    tl.store(out_ptr + row * num_groups + group, largest, mask=group < num_groups)


def group_max_triton(logits: Tensor) -> Tensor:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_rows, size = logits.shape
    assert logits.stride(-1) == 1
    num_groups = triton.cdiv(size, GROUP)
    out = torch.empty((num_rows, num_groups), dtype=torch.float32, device=logits.device)
    if num_rows:
        grid = (num_rows, triton.cdiv(num_groups, _GROUPS_PER_PROGRAM))
        _group_max_kernel[grid](
            logits, out, logits.stride(0), size, num_groups, GROUP=GROUP, GROUPS=_GROUPS_PER_PROGRAM, num_warps=4
        )
    return out


def group_max(logits: Tensor) -> Tensor:
    return group_max_triton(logits) if logits.is_cuda else group_max_reference(logits)
