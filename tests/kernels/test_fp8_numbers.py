from __future__ import annotations

import pytest
import torch

from kernels.fp8_numbers import fp8_numbers
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
