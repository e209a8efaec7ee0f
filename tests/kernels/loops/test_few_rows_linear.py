from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(16, 16), (48, 208), (592, 64)])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 5, 8, 11, 16, 17, 40, 300])
def test_equals_the_exact_product(loops, num_rows, num_outputs, num_inputs, has_bias):
    weight = torch.randn(num_outputs, num_inputs).bfloat16()
    bias = torch.randn(num_outputs).bfloat16() if has_bias else None
    x = torch.randn(num_rows, 3, num_inputs).bfloat16()[:, 1]
    got = loops.few_rows_linear(weight)(x, bias)
    exact = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(got.double(), exact, atol=6e-2, rtol=1e-2)


def test_a_row_does_not_depend_on_the_others_beside_it(loops):
    """Of as many rows at once."""
    linear = loops.few_rows_linear(torch.randn(64, 96).bfloat16())
    x = torch.randn(16, 96).bfloat16()
    assert torch.equal(linear(x, None)[9:], linear(x.flip(0), None)[:7].flip(0))


def test_a_row_that_is_not_finite_stays_alone(loops):
    x = torch.randn(3, 32).bfloat16()
    x[1, 7] = float("inf")
    got = loops.few_rows_linear(torch.randn(32, 32).bfloat16())(x, None)
    assert not got[1].isfinite().any()
    assert got[[0, 2]].isfinite().all()


@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(24, 32), (32, 24), (33, 48)])
def test_other_sizes_are_left_to_others(loops, num_outputs, num_inputs):
    assert loops.few_rows_linear(torch.zeros(num_outputs, num_inputs).bfloat16()) is None


def test_inputs_of_another_width_are_refused(loops):
    with pytest.raises(AssertionError):
        loops.few_rows_linear(torch.zeros(16, 32).bfloat16())(torch.zeros(1, 48).bfloat16(), None)
