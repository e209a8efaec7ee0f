"""The parts of the search by themselves; tests/kernels/test_filter_border.py has the whole of it."""

from __future__ import annotations

from typing import no_type_check

import pytest
import torch

from kernels.border_search import border_key, key_of, kth_key, value_of
from kernels.optional_triton import tl, triton
from tests.kernels.lanes import GPU, INTERPRET

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@triton.jit
@no_type_check
def _keys_kernel(values_ptr, keys_ptr, back_ptr, SIZE: tl.constexpr, SHIFT: tl.constexpr):
    index = tl.arange(0, SIZE)
    keys = key_of(tl.load(values_ptr + index), SHIFT)
    tl.store(keys_ptr + index, keys)
    tl.store(back_ptr + index, value_of(keys, SHIFT))


@pytest.mark.parametrize("lane", [INTERPRET, GPU])
@pytest.mark.parametrize(("dtype", "shift"), [(torch.bfloat16, 16), (torch.float32, 0)])
def test_keys_stand_in_the_order_of_the_values_and_lead_back_to_them(dtype: torch.dtype, shift: int, lane):
    ordinary = torch.randn(250, generator=torch.Generator().manual_seed(0)) * 100
    values = torch.cat((ordinary, torch.tensor([0.0, 1e-38, -1e-38, 3e38, -3e38, float("-inf")])))
    values = lane.put(values.to(dtype).float())
    keys, back = torch.empty_like(values, dtype=torch.int64), torch.empty_like(values)
    _keys_kernel[(1,)](values, keys, back, SIZE=len(values), SHIFT=shift)
    assert torch.equal(back, values)
    order = values.argsort(stable=True)
    assert torch.equal(keys[order].diff() > 0, values[order].diff() > 0)


@triton.jit
@no_type_check
def _kth_kernel(keys_ptr, out_ptr, k, low, high, SIZE: tl.constexpr):
    zero = tl.zeros([1], tl.int64)
    keys = tl.load(keys_ptr + tl.arange(0, SIZE))
    tl.store(out_ptr, kth_key(keys, k, tl.sum(zero) + low, tl.sum(zero) + high))


@pytest.mark.parametrize("lane", [INTERPRET, GPU])
@pytest.mark.parametrize("k", [1, 2, 7, 32])
def test_the_kth_key_is_the_kth_largest(k: int, lane):
    keys = torch.randint(-50, 50, (32,), generator=torch.Generator().manual_seed(k))
    out = lane.put(torch.zeros(1, dtype=torch.int64))
    _kth_kernel[(1,)](lane.put(keys), out, k, -60, 60, SIZE=32)
    assert out.item() == keys.sort(descending=True).values[k - 1]


@triton.jit
@no_type_check
def _border_kernel(
    logits_ptr, maxima_ptr, active_ptr, out_ptr, size, num_groups, wanted, BY_MASS: tl.constexpr, GROUPS: tl.constexpr
):
    group = tl.arange(0, GROUPS)
    maxima = tl.load(maxima_ptr + group, mask=group < num_groups, other=float("-inf"))
    largest = tl.max(maxima, 0)
    low, high = key_of(largest - 100.0, 0), key_of(largest, 0) + 1
    key = border_key(
        logits_ptr, active_ptr, maxima, size, num_groups, low, high, wanted, largest, 1.0,
        largest - 40.0, BY_MASS, 0, 128, GROUPS, GROUPS,
    )  # fmt: skip
    tl.store(out_ptr, value_of(key, 0))


@pytest.mark.parametrize("lane", [INTERPRET, GPU])
@pytest.mark.parametrize("wanted", [1, 5, 40, 299, 0.2, 0.9])
def test_a_border_leaves_just_enough_by_number_or_by_mass(wanted: float, lane):
    logits = torch.randn(300, generator=torch.Generator().manual_seed(3)) * 3
    maxima = torch.stack([part.max() for part in logits.split(128)])
    active, out = torch.zeros(3, dtype=torch.int32), lane.put(torch.zeros(1))
    by_mass = isinstance(wanted, float)
    placed = [lane.put(tensor) for tensor in (logits, maxima, active)]
    _border_kernel[(1,)](*placed, out, 300, 3, wanted, BY_MASS=by_mass, GROUPS=4)
    weights = logits.double().softmax(0) if by_mass else torch.ones(300)
    border = out.item()
    assert border in logits.tolist()
    assert weights[logits >= border].sum() >= wanted
    assert weights[logits > border].sum() < wanted
