"""Philox4x32-10, a counter-based random generator without state (Salmon et al., SC'11).

A 128-bit counter and a 64-bit key give four 32-bit words; equal inputs give equal words, on any device and in any
batch. Ten rounds of

    counter = (hi(B * c2) ^ c1 ^ k0,  lo(B * c2),  hi(A * c0) ^ c3 ^ k1,  lo(A * c0));   key += (W0, W1)

Tensors: words are int64 holding 0 .. 2^32 - 1, of any shapes that broadcast together; integers, so bit for bit the
same as `triton.language.philox`.

`uniform` maps a word to fp32 in [2^-33, 1 - 2^-24]: word * 2^-32 + 2^-33, rounded to nearest, and held below 1.
Small values keep their resolution, which is what the tail of an exponential draw needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_MULTIPLIER_A, _MULTIPLIER_B = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_NUM_ROUNDS = 10
_BELOW_ONE = 1.0 - 2.0**-24

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox_4x32_reference(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """int64 products wrap modulo 2^64, which keeps all 64 bits; a multiplicand is cut to its word before use."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product_a, product_b = c0 * _MULTIPLIER_A, c2 * _MULTIPLIER_B
        c0 = ((product_b >> 32) ^ (c1 ^ k0)) & _WORD
        c2 = ((product_a >> 32) ^ (c3 ^ k1)) & _WORD
        c1, c3 = product_b, product_a
        k0, k1 = (k0 + _WEYL_0) & _WORD, (k1 + _WEYL_1) & _WORD
    return c0, c1 & _WORD, c2, c3 & _WORD


def philox_4x32(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    return philox_4x32_reference(counter, key)


def uniform(words: Tensor) -> Tensor:
    return words.to(torch.float32).mul_(2.0**-32).add_(2.0**-33).clamp_(max=_BELOW_ONE)


def split_int64(values: Tensor) -> tuple[Tensor, Tensor]:
    """(low, high) words of int64 values, as two's complement."""
    return values & _WORD, (values >> 32) & _WORD
