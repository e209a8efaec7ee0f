"""One id per row of logits: the largest, or a draw from the filtered distribution.

Order, per row:
    1. the largest logit is not finite (a NaN, +inf, or nothing but -inf in the row): the answer is -1
    2. temperature 0: argmax of the logits, the lowest id among equals; nothing below applies
    3. x = (logits - largest) / temperature
    4. top-k (top_k > 0): drop every token whose x is smaller than the k-th largest; ties with it stay
    5. top-p (top_p < 1): of what is left, renormalised, drop a token if the strictly more probable ones already
       hold top_p of the mass; the token that crosses top_p stays, and so do ties with it. The best always stays.
    6. Gumbel-max: argmax of x + g, the lowest id among equals, with g[t] = -log(-log1p(-u[t]))

u is stateless: u[t] = uniform(word t % 4 of philox_4x32(counter = (t // 4, position low, position high, 0),
key = (seed low, seed high))). So a draw is a function of (logits, parameters, seed, position) and never of the batch.

Tensors (N rows, V vocabulary):
    logits       [N, V]  bf16 or fp32, last stride 1; read only. -inf forbids a token.
    temperature  [N]     fp32, >= 0
    top_k        [N]     int32; 0 (or >= V) keeps all
    top_p        [N]     fp32, in (0, 1]; 1 keeps all
    seeds        [N]     int64
    positions    [N]     int64: index of the new token in its sequence
    returns      [N]     int64, new; -1 for a row that cannot be drawn from

Rounding: fp32 throughout. The Philox words are bit for bit; two backends may differ in the last bit of a logarithm or
of a sum, so in a draw whose two best scores (or whose mass at the top-p border) agree to one part in 10^6.
N may be 0. V < 2^31.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.philox import philox_4x32, split_int64, uniform

INVALID_TOKEN_ID = -1

# g lies within [-log(24 log 2), 33 log 2]: a token whose x is this far below the best cannot win.
_GUMBEL_SPAN = 33 * math.log(2) + math.log(24 * math.log(2)) + 0.01
_WINDOW = 256  # tokens looked at first for a filter's border
_DENSE_NOISE = 200_000  # values of noise made at a time over whole rows: its counters stay in a CPU's cache


def sample_tokens_reference(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    largest, ids = logits.max(dim=-1)
    rows = (temperature > 0).nonzero().view(-1)
    if rows.numel():
        centred = logits[rows].float() - largest[rows, None].float()
        x = centred / temperature[rows, None]
        x = _drop_filtered(x, top_k[rows], top_p[rows])
        ids[rows] = _gumbel_argmax(x, seeds[rows], positions[rows])
    return torch.where(largest.isfinite(), ids, INVALID_TOKEN_ID)


def _drop_filtered(x: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """x [N, V] with -inf where top-k or top-p drops a token."""
    rows = ((_cuts_by_rank(x, top_k)) | (top_p < 1)).nonzero().view(-1)
    if not rows.numel():
        return x
    border = torch.full_like(x[:, 0], -math.inf)
    border[rows] = _filter_border(x[rows], top_k[rows], top_p[rows], _WINDOW)
    return x.masked_fill(x < border[:, None], -math.inf)


def _cuts_by_rank(x: Tensor, top_k: Tensor) -> Tensor:
    return (top_k > 0) & (top_k < x.shape[-1])


def _filter_border(x: Tensor, top_k: Tensor, top_p: Tensor, window: int) -> Tensor:
    """[N]: the smallest x that stays, sought among each row's `window` largest; rows that need more get more."""
    window = min(window, x.shape[-1])
    values = x.topk(window).values
    kth_index = top_k.clamp(1, window).long()[:, None] - 1
    rank_border = values.gather(1, kth_index).masked_fill_(~_cuts_by_rank(x, top_k)[:, None], -math.inf)

    mass = torch.where(x >= rank_border, x.exp(), 0).sum(-1, keepdim=True)
    probability = values.exp() / mass
    mass_above = probability.cumsum(-1) - probability
    is_kept = (values >= rank_border) & ((mass_above < top_p[:, None]) | (top_p[:, None] >= 1))
    is_kept[:, 0] = True
    border = values.masked_fill(~is_kept, math.inf).amin(-1)

    if window < x.shape[-1]:
        rows = is_kept[:, -1].nonzero().view(-1)
        if rows.numel():
            border[rows] = _filter_border(x[rows], top_k[rows], top_p[rows], 16 * window)
    return border


def _gumbel_argmax(x: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """[N]: argmax of x + g. Few tokens can win as a rule; noise is then made for those alone."""
    can_win = x > -_GUMBEL_SPAN
    if 4 * int(can_win.sum()) > x.numel():
        num_rows = max(1, _DENSE_NOISE // x.shape[-1])
        parts = zip(*(torch.split(t, num_rows) for t in (x, seeds, positions)), strict=True)
        return torch.cat([(part + _dense_gumbel(part, *keys)).argmax(-1) for part, *keys in parts])
    row, token = can_win.nonzero().unbind(-1)
    scores = torch.full_like(x, -math.inf)
    scores[row, token] = x[row, token] + _gumbel_of(token, seeds[row], positions[row])
    return scores.argmax(-1)


def _dense_gumbel(x: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """[N, V]: g of every token."""
    counter = torch.arange(-(-x.shape[-1] // 4), device=x.device)
    words = torch.stack(_words(counter, seeds[:, None], positions[:, None]), dim=-1)
    return _gumbel(words.view(x.shape[0], -1)[:, : x.shape[-1]])


def _gumbel_of(token: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """[M]: g of one token each."""
    words = torch.stack(_words(token // 4, seeds, positions), dim=-1)
    return _gumbel(words.gather(-1, (token % 4)[:, None]).view(-1))


def _words(counter: Tensor, seeds: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    low, high = split_int64(positions)
    return philox_4x32((counter, low, high, torch.zeros_like(low)), split_int64(seeds))


def _gumbel(words: Tensor) -> Tensor:
    return uniform(words).neg_().log1p_().neg_().log_().neg_()


def sample_tokens(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    seeds: Tensor,
    positions: Tensor,
) -> Tensor:
    num_rows = logits.shape[0]
    assert logits.stride(-1) == 1 and logits.shape[-1] < 2**31
    assert temperature.dtype == top_p.dtype == torch.float32 and top_k.dtype == torch.int32
    assert seeds.dtype == positions.dtype == torch.int64
    assert all(t.shape == (num_rows,) for t in (temperature, top_k, top_p, seeds, positions))
    return sample_tokens_reference(logits, temperature, top_k, top_p, seeds, positions)
