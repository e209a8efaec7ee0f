"""Log probabilities of the drawn tokens and of the most probable ones.

    logprob(n, t) = logits[n, t] - log(sum_v exp(logits[n, v]))
    chosen[n] = logprob(n, token_ids[n]);  NaN where token_ids[n] is -1
    top_ids[n], top[n] = the K most probable tokens, best first, and their logprobs

Tensors (N rows, V vocabulary, K <= 128 and <= V):
    logits     [N, V]  bf16 or fp32, last stride 1; read only
    token_ids  [N]     int64
    returns    chosen [N] fp32, top_ids [N, K] int64, top [N, K] fp32; all new

Rounding: fp32 throughout. Equal logits may be in any order, and any tokens equal to the K-th may come last (the kernel
takes the lowest ids). A forbidden token (-inf) may occur twice. A row with a NaN, +inf, or only -inf gives NaN and any
ids. N and K may be 0.
"""

from __future__ import annotations

from typing import NamedTuple, no_type_check

import torch
from torch import Tensor

from kernels.group_max import GROUP, group_max_triton
from kernels.optional_triton import tl, triton

_CHUNK = 4096


class TokenLogprobs(NamedTuple):
    chosen: Tensor
    top_ids: Tensor
    top: Tensor


def token_logprobs_reference(logits: Tensor, token_ids: Tensor, num_top: int) -> TokenLogprobs:
    logprobs = logits.float().log_softmax(-1)
    chosen = logprobs.gather(-1, token_ids.clamp(min=0)[:, None])[:, 0]
    top = logprobs.topk(num_top, dim=-1)
    return TokenLogprobs(chosen.masked_fill(token_ids < 0, float("nan")), top.indices, top.values)


@triton.jit
@no_type_check
def _chunk_mass_kernel(
    logits_ptr, maxima_ptr, mass_ptr, stride_row, size, num_groups, num_chunks, GROUP: tl.constexpr, CHUNK: tl.constexpr
):
    """Program (row, chunk): the sum of exponentials relative to the chunk's maximum, which is known from the groups."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    group = chunk * (CHUNK // GROUP) + tl.arange(0, CHUNK // GROUP)
    maxima = tl.load(maxima_ptr + row * num_groups + group, mask=group < num_groups, other=float("-inf"))
    largest = tl.maximum(tl.max(maxima, 0), -3.4e38)  # a chunk of only -inf has no mass
    token = chunk * CHUNK + tl.arange(0, CHUNK)
    logits = tl.load(logits_ptr + row * stride_row + token, mask=token < size, other=float("-inf")).to(tl.float32)
    tl.store(mass_ptr + row * num_chunks + chunk, tl.sum(tl.exp(logits - largest), 0))


@triton.jit(do_not_specialize=["num_top"], do_not_specialize_on_alignment=["token_ids_ptr"])
@no_type_check
def _token_logprobs_kernel(
    logits_ptr,
    maxima_ptr,
    mass_ptr,
    token_ids_ptr,
    chosen_ptr,
    top_ids_ptr,
    top_ptr,
    stride_row,
    size,
    num_groups,
    num_chunks,
    num_top,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_CHUNKS: tl.constexpr,
):
    """Program: one row. The best tokens are taken one after another, each from the group with the largest remaining
    logit."""
    row = tl.program_id(0).to(tl.int64)
    logits_row_ptr = logits_ptr + row * stride_row
    chunk = tl.arange(0, BLOCK_CHUNKS)
    group = chunk[:, None] * (CHUNK // GROUP) + tl.arange(0, CHUNK // GROUP)[None, :]
    maxima = tl.load(maxima_ptr + row * num_groups + group, mask=group < num_groups, other=float("-inf"))
    chunk_largest = tl.max(maxima, 1)
    largest = tl.max(chunk_largest, 0)
    mass = tl.load(mass_ptr + row * num_chunks + chunk, mask=chunk < num_chunks, other=0.0)
    total = tl.sum(mass * tl.exp(tl.maximum(chunk_largest, -3.4e38) - largest), 0)
    is_finite = (largest > float("-inf")) & (largest < float("inf"))
    log_total = tl.where(is_finite, largest + tl.log(total), float("nan"))

    token_id = tl.load(token_ids_ptr + row)
    logit = tl.load(logits_row_ptr + token_id, mask=token_id >= 0, other=float("nan")).to(tl.float32)
    tl.store(chosen_ptr + row, logit - log_total)

    last_value = float("inf") + largest * 0
    last_token = (token_id * 0 - 1).to(tl.int32)
    for rank in range(num_top):
        best = tl.max(tl.max(maxima, 1), 0)
        first_group = tl.min(tl.min(tl.where(maxima == best, group, num_groups - 1), 1), 0)
        token = first_group * GROUP + tl.arange(0, GROUP)
        values = tl.load(logits_row_ptr + token, mask=token < size, other=float("-inf")).to(tl.float32)
        # Taken so far: all before (last_value, last_token) in the order of descending value, then ascending id.
        is_left = (values < last_value) | ((values == last_value) & (token > last_token))
        taken = tl.min(tl.where(is_left & (values == best) & (token < size), token, size - 1), 0)
        tl.store(top_ids_ptr + row * num_top + rank, taken.to(tl.int64))
        tl.store(top_ptr + row * num_top + rank, best - log_total)
        is_left = (values < best) | ((values == best) & (token > taken))
        next_best = tl.max(tl.where(is_left & (token < size), values, float("-inf")), 0)
        maxima = tl.where(group == first_group, next_best, maxima)
        last_value, last_token = best, taken


def token_logprobs_triton(logits: Tensor, token_ids: Tensor, num_top: int) -> TokenLogprobs:
    """On CUDA tensors, or on any in Triton's interpreter. Three launches: group maxima, masses of chunks, rows."""
    num_rows, size = logits.shape
    assert logits.stride(-1) == 1 and 0 < size < 2**31 - _CHUNK and num_top <= min(128, size)
    assert token_ids.shape == (num_rows,) and token_ids.dtype == torch.int64 and token_ids.is_contiguous()
    chosen = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    top_ids = torch.empty((num_rows, num_top), dtype=torch.int64, device=logits.device)
    top = torch.empty((num_rows, num_top), dtype=torch.float32, device=logits.device)
    if num_rows:
        maxima = group_max_triton(logits)
        num_groups, num_chunks = maxima.shape[1], triton.cdiv(size, _CHUNK)
        mass = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=logits.device)
        _chunk_mass_kernel[(num_rows, num_chunks)](
            logits,
            maxima,
            mass,
            logits.stride(0),
            size,
            num_groups,
            num_chunks,
            GROUP=GROUP,
            CHUNK=_CHUNK,
            num_warps=8,
        )
        _token_logprobs_kernel[(num_rows,)](
            logits,
            maxima,
            mass,
            token_ids,
            chosen,
            top_ids,
            top,
            logits.stride(0),
            size,
            num_groups,
            num_chunks,
            num_top,
            GROUP=GROUP,
            CHUNK=_CHUNK,
            BLOCK_CHUNKS=triton.next_power_of_2(num_chunks),
            num_warps=4,
        )
    return TokenLogprobs(chosen, top_ids, top)


def token_logprobs(logits: Tensor, token_ids: Tensor, num_top: int) -> TokenLogprobs:
    return (token_logprobs_triton if logits.is_cuda else token_logprobs_reference)(logits, token_ids, num_top)
