from __future__ import annotations

import pytest
import torch

from kernels.quantized_weight import (
    FP8_MAX,
    chunk_of,
    dense,
    pack_int4,
    quantize_fp8,
    quantize_fp8_weight,
    unpack_int4,
)
from tests.kernels.quantized_weights import INT8_KINDS, KINDS, random_weight


@pytest.mark.parametrize("kind", (*KINDS, *INT8_KINDS))
def test_dequantized_is_what_its_elements_stand_for(kind):
    weight, exact = random_weight(kind, 6, 192, torch.float32)
    assert weight.shape == exact.shape == dense(weight).shape
    torch.testing.assert_close(dense(weight).double(), exact, rtol=1e-6, atol=0)
    assert weight.new_empty(3, 4).dtype == dense(weight).dtype == torch.float32


def test_bits_decide_the_memory():
    sizes = {kind: random_weight(kind, 128, 1024, torch.bfloat16)[0].nbytes / (128 * 1024) for kind in KINDS}
    assert 1 < sizes["fp8"] < 1.01 and 0.5 < sizes["int4 channels"] < 0.51 < sizes["int4"] < 0.55


@pytest.mark.parametrize("chunk", [32, 64, 128])
def test_packing_keeps_every_element_where_its_chunk_says(chunk):
    values = torch.randint(16, (3, 256), dtype=torch.uint8)
    packed = pack_int4(values, chunk)
    assert torch.equal(unpack_int4(packed, chunk), values)
    for k in (0, 1, chunk // 2 - 1, chunk // 2, chunk - 1, chunk, 255):
        place, offset = divmod(k, chunk)
        byte = packed[:, place * chunk // 2 + offset % (chunk // 2)]
        assert torch.equal(byte >> 4 if offset >= chunk // 2 else byte & 15, values[:, k])


@pytest.mark.parametrize(
    ("group", "chunk"), [(128, 128), (256, 128), (64, 64), (32, 32), (96, 32), (16, 0), (11008, 128)]
)
def test_chunks_are_of_one_group(group, chunk):
    assert chunk_of(group) == chunk
    assert chunk == 0 or group % chunk == 0


def test_a_row_uses_all_of_fp8_and_loses_a_sixteenth_at_most():
    weight = torch.randn(40, 300) * torch.logspace(-6, 4, 40)[:, None]
    weight[7] = 0
    elements, scales = quantize_fp8(weight.bfloat16())
    assert scales.shape == (40, 1) and (scales > 0).all()
    largest = elements.float().abs().amax(1)
    assert (largest[torch.arange(40) != 7] == FP8_MAX).all() and largest[7] == 0
    back, want = elements.float() * scales, weight.bfloat16().float()
    assert ((back - want).abs() <= want.abs() / 16 + scales * 2**-10).all()


def test_a_weights_rows_have_scales_that_leave_less_of_an_error():
    weight = torch.randn(30, 500)
    weight[3] = 0

    def errors(elements, scales):
        return (elements.float() * scales - weight).square().sum(1)

    plain, chosen = errors(*quantize_fp8(weight)), errors(*quantize_fp8_weight(weight))
    assert (chosen <= plain).all() and chosen.sum() < 0.95 * plain.sum()
