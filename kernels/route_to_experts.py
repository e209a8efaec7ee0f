"""Which experts each token uses, and with what weights (Shazeer et al. 2017; Fedus et al. 2021).

    p = softmax(logits[t])        experts[t] = top_k of p, largest first        weights[t] = p[experts[t]]

divided by their sum if `renormalizes`: then they are the softmax over the chosen logits only.

Tensors (T tokens, E experts):
    logits   [T, E]      bf16, fp16 or fp32, contiguous
    experts  [T, top_k]  int32, contiguous, new
    weights  [T, top_k]  fp32, contiguous, new

fp32 throughout. If logits are equal, the kernel takes the lowest expert id, the reference any. For any logits, even
NaN, expert ids are below E; a token's ids are sure to be distinct only if its logits are finite. T may be 0; 1 <= top_k
<= E <= 1024. The host reads no values, and shapes depend only on shapes: a CUDA graph may hold the launch.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
from torch import Tensor

from kernels.dependent_launch import dependent_launch, wait_for_inputs
from kernels.optional_triton import tl, triton

_MOST_EXPERTS = 1024


class Routes(NamedTuple):
    """experts [T, top_k] int32, weights [T, top_k] fp32."""

    experts: Tensor
    weights: Tensor


def route_to_experts_reference(logits: Tensor, top_k: int, renormalizes: bool) -> Routes:
    values, experts = logits.float().topk(top_k, dim=-1)
    weights = values.softmax(-1) if renormalizes else (values - logits.float().logsumexp(-1, keepdim=True)).exp()
    return Routes(experts.int(), weights)


@triton.jit
@no_type_check
def _route_to_experts_kernel(
    logits_ptr,
    experts_ptr,
    weights_ptr,
    num_experts,
    TOP_K: tl.constexpr,
    RENORMALIZES: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program: one token."""
    wait_for_inputs(PDL)
    token = tl.program_id(0).to(tl.int64)
    expert = tl.arange(0, BLOCK_E)
    is_expert = expert < num_experts
    logits = tl.load(logits_ptr + token * num_experts + expert, mask=is_expert, other=float("-inf")).to(tl.float32)
    logits = tl.where(logits == logits, tl.minimum(logits, 3.0e38), float("-inf"))
    highest = tl.max(logits, 0)
    exponentials = tl.exp(logits - tl.where(highest > float("-inf"), highest, 0))
    total = tl.sum(exponentials, 0)

    slot = tl.arange(0, BLOCK_K)
    experts = tl.zeros([BLOCK_K], tl.int32)
    weights = tl.zeros([BLOCK_K], tl.float32)
    for i in tl.static_range(TOP_K):
        best = tl.argmax(logits, 0)  # 0, a valid expert, if nothing is left
        experts = tl.where(slot == i, best, experts)
        weights = tl.where(slot == i, tl.sum(tl.where(expert == best, exponentials, 0), 0), weights)
        logits = tl.where(expert == best, float("-inf"), logits)
    if RENORMALIZES:
        total = tl.sum(weights, 0)
    total = tl.where(total > 0, total, 1)
    place = token * TOP_K + slot
    tl.store(experts_ptr + place, experts, mask=slot < TOP_K)
    tl.store(weights_ptr + place, weights / total, mask=slot < TOP_K)


def route_to_experts_triton(logits: Tensor, top_k: int, renormalizes: bool) -> Routes:
    """On CUDA tensors, or on any in Triton's interpreter."""
    num_tokens, num_experts = logits.shape
    assert logits.is_contiguous() and 1 <= top_k <= num_experts <= _MOST_EXPERTS
    experts = torch.empty((num_tokens, top_k), dtype=torch.int32, device=logits.device)
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=logits.device)
    if num_tokens:
        _route_to_experts_kernel[(num_tokens,)](
            logits,
            experts,
            weights,
            num_experts,
            TOP_K=top_k,
            RENORMALIZES=renormalizes,
            BLOCK_E=triton.next_power_of_2(num_experts),
            BLOCK_K=triton.next_power_of_2(top_k),
            num_warps=1 if num_experts <= 256 else 4,
            **dependent_launch(logits.device),
        )
    return Routes(experts, weights)


def route_to_experts(logits: Tensor, top_k: int, renormalizes: bool) -> Routes:
    route = route_to_experts_triton if logits.is_cuda else route_to_experts_reference
    return route(logits, top_k, renormalizes)
