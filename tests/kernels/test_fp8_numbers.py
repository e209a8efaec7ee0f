from __future__ import annotations

import pytest
import torch

from kernels.fp8_numbers import fp8_numbers, fp8_pairs
from kernels.optional_triton import tl, triton
from tests.kernels.attention_lanes import variants


@triton.jit
def _convert(elements_ptr, out_ptr):
    place = tl.arange(0, 256)
    tl.store(out_ptr + place, fp8_numbers(tl.load(elements_ptr + place), out_ptr.dtype.element_ty))


@pytest.mark.parametrize(
    ("lane", "dtype"),
    [*variants("interpret", torch.float32, torch.float16), *variants("gpu", torch.float32, torch.bfloat16)],
)
def test_every_element_is_its_number_exactly(lane, dtype):
    elements = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    is_number = elements.float().isfinite()
    out = lane.put(torch.zeros(256, dtype=dtype))
    _convert[(1,)](lane.put(elements), out)
    assert torch.equal(out.cpu().float()[is_number], elements.float()[is_number])
    assert int(is_number.sum()) == 254


@triton.jit
def _convert_pairs(pairs_ptr, first_ptr, second_ptr):
    place = tl.arange(0, 65536)
    first, second = fp8_pairs(tl.load(pairs_ptr + place), first_ptr.dtype.element_ty)
    tl.store(first_ptr + place, first)
    tl.store(second_ptr + place, second)


@pytest.mark.parametrize(
    ("lane", "dtype"), [*variants("interpret", torch.float32), *variants("gpu", torch.float32, torch.bfloat16)]
)
def test_every_pair_is_its_two_numbers_exactly(lane, dtype):
    pairs = torch.arange(65536).to(torch.uint16)
    outs = [lane.put(torch.zeros(65536, dtype=dtype)) for _ in range(2)]
    _convert_pairs[(1,)](lane.put(pairs), *outs)
    for place, out in enumerate(outs):
        want = pairs.view(torch.uint8).view(-1, 2)[:, place].contiguous().view(torch.float8_e4m3fn).float()
        is_number = want.isfinite()
        assert torch.equal(out.cpu().float()[is_number], want[is_number])
