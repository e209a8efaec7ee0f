"""Sampling by the Gumbel-max trick, with noise that depends only on (seed, position, token).

    best[n] = argmax over t of x[n, t] + g[n, t], the lowest id if equal,   g = -log(-log1p(-u))
    u[n, t] = uniform(word t % 4 of philox_4x32(counter = (t // 4, position low, position high, 0),
                                                key = (seed low, seed high)))

which draws token t with probability softmax(x)[t]. A draw never depends on the rest of the batch.

Tensors (N rows, V vocabulary, G groups of 128 tokens, C chunks of 1024 tokens):
    logits       [N, V]  bf16 or fp32, last stride 1; read only
    maxima       [N, G]  fp32, from kernels/group_max.py
    largest      [N]     fp32, the largest logit
    border       [N]     fp32; tokens whose x = (logits - largest) / temperature is below it are not drawn
    temperature  [N]     fp32; rows with 0, or whose largest is not finite, are skipped and not written
    seeds        [N]     int64
    positions    [N]     int64: index of the new token in its sequence
    returns score, token [N, C] fp32 and int32, new: the best of each chunk; -inf where nothing can be drawn

The reference takes x [N, V] fp32, with -inf for tokens that must not be drawn, and returns ids [N] int64.

Rounding: fp32. The Philox words agree bit for bit; scores may differ in the last bit between backends.
"""

from __future__ import annotations

import math
from typing import no_type_check

import torch
from torch import Tensor

from kernels.filter_border import x_scale
from kernels.group_max import GROUP
from kernels.optional_triton import tl, triton
from kernels.philox import philox_4x32_reference, philox_uniform, philox_words, split_int64, uniform

# g lies within [-log(24 log 2), 33 log 2]: a token whose x is this far below the best cannot win.
_GUMBEL_SPAN = 33 * math.log(2) + math.log(24 * math.log(2)) + 0.01
_DENSE_NOISE = 200_000  # noise values made at once for whole rows: the counters stay in a CPU's cache
_CHUNK = 1024  # tokens per program


def gumbel_argmax_reference(x: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    return best_score_reference(x, seeds, positions)[1]


def best_score_reference(x: Tensor, seeds: Tensor, positions: Tensor, first: int = 0) -> tuple[Tensor, Tensor]:
    """(score, index in x) of each row's best; x's tokens start at id `first`. Usually few tokens can win; then noise is
    made only for those."""
    can_win = x > -_GUMBEL_SPAN
    if 4 * int(can_win.sum()) > x.numel():
        num_rows = max(1, _DENSE_NOISE // x.shape[-1])
        parts = zip(*(torch.split(t, num_rows) for t in (x, seeds, positions)), strict=True)
        best = [(part + dense_gumbel(part, seed, position, first)).max(-1) for part, seed, position in parts]
        return torch.cat([score for score, _ in best]), torch.cat([place for _, place in best])
    row, place = can_win.nonzero().unbind(-1)
    scores = torch.full_like(x, -math.inf)
    scores[row, place] = x[row, place] + _gumbel_of(first + place, seeds[row], positions[row])
    score, best_place = scores.max(-1)
    return score, best_place


def dense_gumbel(x: Tensor, seeds: Tensor, positions: Tensor, first: int = 0) -> Tensor:
    """[N, V]: g of every token from `first` on, a multiple of 4."""
    counter = first // 4 + torch.arange(-(-x.shape[-1] // 4), device=x.device)
    words = torch.stack(_words(counter, seeds[:, None], positions[:, None]), dim=-1)
    return _gumbel(words.view(x.shape[0], -1)[:, : x.shape[-1]])


def _gumbel_of(token: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """[M]: g of one token per row."""
    words = torch.stack(_words(token // 4, seeds, positions), dim=-1)
    return _gumbel(words.gather(-1, (token % 4)[:, None]).view(-1))


def _words(counter: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    low, high = split_int64(positions)
    return philox_4x32_reference((counter, low, high, torch.zeros_like(low)), split_int64(seeds))


def _gumbel(words: Tensor) -> Tensor:
    return uniform(words).neg_().log1p_().neg_().log_().neg_()


@triton.jit(
    do_not_specialize=["first_counter"],
    do_not_specialize_on_alignment=["temperature_ptr", "seeds_ptr", "positions_ptr", "largest_ptr", "border_ptr"],
)
@no_type_check
def _gumbel_argmax_kernel(
    logits_ptr,
    maxima_ptr,
    largest_ptr,
    border_ptr,
    temperature_ptr,
    seeds_ptr,
    positions_ptr,
    best_score_ptr,  # [N, chunks] fp32
    best_token_ptr,  # [N, chunks] int32
    stride_row,
    size,
    num_groups,
    num_chunks,
    first_counter,
    GUMBEL_SPAN: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Program (row, chunk of tokens): the chunk's best score, and the lowest id that has it."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    largest = tl.load(largest_ptr + row)
    is_finite = (largest > float("-inf")) & (largest < float("inf"))
    if (temperature <= 0) | (is_finite == 0):
        return
    border = tl.load(border_ptr + row)
    slot = row * num_chunks + chunk
    group = chunk * (CHUNK // GROUP) + tl.arange(0, CHUNK // GROUP)
    maxima = tl.load(maxima_ptr + row * num_groups + group, mask=group < num_groups, other=float("-inf"))
    scale = x_scale(temperature)
    highest = (tl.max(maxima, 0) - largest) * scale
    if (highest < border) | (highest < -GUMBEL_SPAN):
        tl.store(best_score_ptr + slot, float("-inf"))
        tl.store(best_token_ptr + slot, 0)
        return

    token = chunk * CHUNK + tl.arange(0, CHUNK)
    logits = tl.load(logits_ptr + row * stride_row + token, mask=token < size, other=float("-inf")).to(tl.float32)
    x = (logits - largest) * scale
    seed, position = tl.load(seeds_ptr + row), tl.load(positions_ptr + row)
    counter = (first_counter + chunk * (CHUNK // 4) + tl.arange(0, CHUNK // 4)).to(tl.uint32)
    zero = (position & 0).to(tl.uint32)
    w0, w1, w2, w3 = philox_words(
        counter,
        (position & 0xFFFFFFFF).to(tl.uint32),
        ((position >> 32) & 0xFFFFFFFF).to(tl.uint32),
        zero,
        (seed & 0xFFFFFFFF).to(tl.uint32),
        ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32),
    )
    u = philox_uniform(tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3)))
    rest = 1.0 - u
    exponential = (u - (1.0 - rest)) - tl.log(rest)  # -log1p(-u): adds what rounding 1 - u lost
    scores = tl.where((x >= border) & (token < size), x - tl.log(exponential), float("-inf"))
    best = tl.max(scores, 0)
    tl.store(best_score_ptr + slot, best)
    tl.store(best_token_ptr + slot, tl.min(tl.where(scores == best, token, size), 0))


def gumbel_argmax_triton(
    logits: Tensor,
    maxima: Tensor,
    largest: Tensor,
    border: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    first: int = 0,
) -> tuple[Tensor, Tensor]:
    """On CUDA tensors, or on any in Triton's interpreter. All except logits are contiguous. first: the id of the first
    token, a multiple of 4, if the logits are a part of the vocabulary; returned tokens are counted from it."""
    num_rows, size = logits.shape
    num_chunks = triton.cdiv(size, _CHUNK)
    assert logits.stride(-1) == 1 and maxima.is_contiguous() and maxima.shape[1] == triton.cdiv(size, GROUP)
    score = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=logits.device)
    token = torch.empty((num_rows, num_chunks), dtype=torch.int32, device=logits.device)
    if num_rows == 0:
        return score, token
    _gumbel_argmax_kernel[(num_rows, num_chunks)](
        logits,
        maxima,
        largest,
        border,
        temperature,
        seeds,
        positions,
        score,
        token,
        logits.stride(0),
        size,
        maxima.shape[1],
        num_chunks,
        first // 4,
        GUMBEL_SPAN=_GUMBEL_SPAN,
        GROUP=GROUP,
        CHUNK=_CHUNK,
        num_warps=4,
    )
    return score, token
