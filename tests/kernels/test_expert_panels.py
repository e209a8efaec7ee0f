from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.cpu_loops import cpu_loops
from kernels.expert_panels import expert_panels
from kernels.grouped_product import FP8, INT4, MXFP4, PLAIN, ExpertWeight
from tests.kernels.expert_case import SMALL_TILES, expert_case
from tests.kernels.lanes import Lane


@pytest.mark.parametrize(
    ("form", "num_groups", "has_zeros"),
    [(FP8, 1, False), (FP8, 2, False), (INT4, 2, False), (INT4, 2, True), (MXFP4, 1, False)],
)
@pytest.mark.parametrize("has_bias", [False, True])
def test_each_expert_is_multiplied_by_as_it_is(form, num_groups, has_zeros, has_bias):
    if cpu_loops() is None:
        pytest.skip("this machine runs no compiled loops")
    case = expert_case(
        Lane("reference"),
        5,
        48,
        128,
        SMALL_TILES,
        has_bias=has_bias,
        form=form,
        num_groups=num_groups,
        has_zeros=has_zeros,
    )
    panels = expert_panels(case.weight)
    assert panels is not None and panels.num_features == 48
    few, plain = panels.num_bytes, case.weight.values.shape[0] * 48 * 128 * 2
    assert few < plain * (0.6 if form == FP8 else 0.36)
    for expert, exact in enumerate(case.exact):
        x = torch.randn(7, 128).bfloat16()
        want = F.linear(x.double(), exact, case.bias[expert])
        torch.testing.assert_close(panels.product(expert, x).double(), want, atol=5e-3, rtol=2**-7)


def test_what_has_no_fewer_bits_or_another_size_is_left_to_others():
    assert expert_panels(ExpertWeight(torch.zeros(2, 16, 32).bfloat16())) is None
    assert ExpertWeight(torch.zeros(2, 16, 32)).form == PLAIN
    odd = ExpertWeight(torch.zeros(2, 8, 32).to(torch.float8_e4m3fn), torch.ones(2, 8, 1))
    assert expert_panels(odd) is None
