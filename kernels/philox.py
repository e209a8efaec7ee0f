"""Philox4x32-10, a counter-based random generator without state (Salmon et al., SC'11).

A 128-bit counter and a 64-bit key give four 32-bit words; equal inputs give equal words, on any device and in any
batch. Ten rounds of

    counter = (hi(B * c2) ^ c1 ^ k0,  lo(B * c2),  hi(A * c0) ^ c3 ^ k1,  lo(A * c0));   key += (W0, W1)

Tensors: words are int64 holding 0 .. 2^32 - 1, of any shapes that broadcast together; integers, so bit for bit the
same as `triton.language.philox`. Kernels in other files call `philox_words` and `philox_uniform`, with uint32.

`uniform` maps a word to fp32 in [2^-33, 1 - 2^-24]: word * 2^-32 + 2^-33, rounded to nearest and clamped below 1. Small
values keep their resolution, which the tail of an exponential draw needs.
"""

from __future__ import annotations

from typing import no_type_check

import torch
from torch import Tensor

from kernels.optional_triton import tl, triton

_WORD = 0xFFFFFFFF
_MULTIPLIER_A, _MULTIPLIER_B = 0xD2511F53, 0xCD9E8D57
_WEYL_0, _WEYL_1 = 0x9E3779B9, 0xBB67AE85
_NUM_ROUNDS = 10
_BELOW_ONE = 1.0 - 2.0**-24

Words = tuple[Tensor, Tensor, Tensor, Tensor]


def philox_4x32_reference(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """int64 products wrap modulo 2^64, which keeps all 64 bits; a factor is cut to its word before it is multiplied."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_NUM_ROUNDS):
        product_a, product_b = c0 * _MULTIPLIER_A, c2 * _MULTIPLIER_B
        c0 = ((product_b >> 32) ^ (c1 ^ k0)) & _WORD
        c2 = ((product_a >> 32) ^ (c3 ^ k1)) & _WORD
        c1, c3 = product_b, product_a
        k0, k1 = (k0 + _WEYL_0) & _WORD, (k1 + _WEYL_1) & _WORD
    return c0, c1 & _WORD, c2, c3 & _WORD


@triton.jit
@no_type_check
def philox_words(c0, c1, c2, c3, k0, k1):
    """Four uint32 words; the arguments are uint32 blocks or scalars of one program."""
    for _ in tl.static_range(10):
        product_a = c0.to(tl.uint64) * 0xD2511F53
        product_b = c2.to(tl.uint64) * 0xCD9E8D57
        c0 = (product_b >> 32).to(tl.uint32) ^ c1 ^ k0
        c2 = (product_a >> 32).to(tl.uint32) ^ c3 ^ k1
        c1 = product_b.to(tl.uint32)
        c3 = product_a.to(tl.uint32)
        k0 += 0x9E3779B9
        k1 += 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
@no_type_check
def philox_uniform(words):
    return tl.minimum(
        words.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10, 0.999999940395355224609375
    )


@triton.jit(do_not_specialize=["size"])
@no_type_check
def _philox_kernel(inputs_ptr, words_ptr, size, BLOCK: tl.constexpr):
    """Program: a piece of the `size` counters. inputs [6, size]: counter and key; words [4, size]."""
    element = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_element = element < size
    c0 = tl.load(inputs_ptr + element, mask=is_element, other=0).to(tl.uint32)
    c1 = tl.load(inputs_ptr + size + element, mask=is_element, other=0).to(tl.uint32)
    c2 = tl.load(inputs_ptr + 2 * size + element, mask=is_element, other=0).to(tl.uint32)
    c3 = tl.load(inputs_ptr + 3 * size + element, mask=is_element, other=0).to(tl.uint32)
    k0 = tl.load(inputs_ptr + 4 * size + element, mask=is_element, other=0).to(tl.uint32)
    k1 = tl.load(inputs_ptr + 5 * size + element, mask=is_element, other=0).to(tl.uint32)
    w0, w1, w2, w3 = philox_words(c0, c1, c2, c3, k0, k1)
    tl.store(words_ptr + element, w0.to(tl.int64), mask=is_element)
    tl.store(words_ptr + size + element, w1.to(tl.int64), mask=is_element)
    tl.store(words_ptr + 2 * size + element, w2.to(tl.int64), mask=is_element)
    tl.store(words_ptr + 3 * size + element, w3.to(tl.int64), mask=is_element)


def philox_4x32_triton(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """On CUDA tensors, or on any in Triton's interpreter."""
    inputs = torch.stack(torch.broadcast_tensors(*counter, *key))
    words = torch.empty((4, *inputs.shape[1:]), dtype=torch.int64, device=inputs.device)
    size = words[0].numel()
    if size:
        _philox_kernel[(triton.cdiv(size, 1024),)](inputs, words, size, BLOCK=1024)
    return words[0], words[1], words[2], words[3]


def philox_4x32(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    return philox_4x32_triton(counter, key) if counter[0].is_cuda else philox_4x32_reference(counter, key)


def uniform(words: Tensor) -> Tensor:
    return words.to(torch.float32).mul_(2.0**-32).add_(2.0**-33).clamp_(max=_BELOW_ONE)


def split_int64(values: Tensor) -> tuple[Tensor, Tensor]:
    """(low, high) words of int64 values, as two's complement."""
    return values & _WORD, (values >> 32) & _WORD
