from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.mxfp4 import dequantize_mxfp4
from kernels.quantized_weight import QuantizedWeight, pack_int4, quantize_fp8
from service.layers.packed_weight import stays_quantized
from tests.kernels.quantized_weights import INT8_KINDS, KINDS, random_weight


@pytest.mark.pairwise
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


@pytest.mark.parametrize("num_inputs", [16, 96, 1040])
def test_a_rows_bits_depend_on_no_other_row_and_on_no_number_of_rows(loops, num_inputs):
    check_rows_stand_alone(loops.few_rows_linear(torch.randn(80, num_inputs).bfloat16()))


@pytest.mark.parametrize("kind", (*KINDS, *INT8_KINDS))
def test_nor_do_they_by_a_quantized_weight(loops, kind):
    check_rows_stand_alone(loops.few_rows_linear(random_weight(kind, 80, 192, torch.bfloat16)[0]))


def check_rows_stand_alone(linear):
    x, bias = torch.randn(70, linear.num_inputs).bfloat16(), torch.randn(80).bfloat16()
    want = torch.cat([linear(row, bias) for row in x.split(1)])
    for num_rows in (2, 3, 4, 7, 8, 15, 16, 17, 33, 70):
        first = 70 - num_rows
        assert torch.equal(linear(x[first:], bias), want[first:])
    assert torch.equal(linear(x.flip(0), bias), want.flip(0))


def test_a_row_that_is_not_finite_stays_alone(loops):
    x = torch.randn(3, 32).bfloat16()
    x[1, 7] = float("inf")
    got = loops.few_rows_linear(torch.randn(32, 32).bfloat16())(x, None)
    assert not got[1].isfinite().any()
    assert got[[0, 2]].isfinite().all()


def fp8_weight(num_outputs, num_inputs):
    weight = torch.randn(num_outputs, num_inputs) * torch.logspace(-3, 2, num_outputs)[:, None]
    return QuantizedWeight(*quantize_fp8(weight), None, torch.bfloat16)


@pytest.mark.pairwise
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(16, 16), (592, 64)])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 8, 17, 300])
def test_of_eight_bits_too(loops, num_rows, num_outputs, num_inputs, has_bias):
    """Products are those of the elements and scales themselves, which no bf16 has rounded."""
    weight = fp8_weight(num_outputs, num_inputs)
    bias = torch.randn(num_outputs).bfloat16() if has_bias else None
    x = torch.randn(num_rows, num_inputs).bfloat16()
    got = loops.few_rows_linear(weight)(x, bias).double()
    whole = weight.elements.double() * weight.scales.double()
    exact = F.linear(x.double(), whole, None if bias is None else bias.double())
    assert ((got - exact).abs() <= exact.abs() * 2**-8 + whole.abs().amax(1) * 1e-3).all()


def test_every_element_is_its_number_or_nearly_nothing(loops):
    """Of ones a row's product is the element itself."""
    bits = torch.arange(256, dtype=torch.uint8).repeat(16, 1)
    bits[:, 127], bits[:, 255] = 0, 0
    elements = bits.view(torch.float8_e4m3fn)
    linear = loops.few_rows_linear(QuantizedWeight(elements, torch.ones(16, 1), None, torch.bfloat16))
    got, want = linear(torch.eye(256).bfloat16(), None).float(), elements.float().T
    is_small = want.abs() < 2**-6
    assert torch.equal(got[~is_small], want[~is_small])
    assert (got[is_small] == 0).all()


def test_every_integer_of_eight_bits_is_itself(loops):
    elements = torch.arange(-128, 128, dtype=torch.int8).repeat(16, 1)
    linear = loops.few_rows_linear(QuantizedWeight(elements, torch.ones(16, 1), None, torch.bfloat16))
    assert torch.equal(linear(torch.eye(256).bfloat16(), None), elements.T.bfloat16())


def test_where_the_processor_looks_up_no_bytes_int8_is_left_to_others(loops, monkeypatch):
    monkeypatch.setattr("kernels.loops.few_rows_linear.has_vbmi", lambda: False)
    assert loops.takes_weight(64, 64) and not loops.takes_int8(64, 64)
    assert loops.few_rows_linear(random_weight("int8", 64, 64, torch.bfloat16)[0]) is None
    assert not stays_quantized(64, 64, torch.bfloat16, is_int8=True) and stays_quantized(64, 64, torch.bfloat16)


@pytest.mark.pairwise
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("group", [32, 64])
@pytest.mark.parametrize("kind", (*KINDS, *INT8_KINDS))
@pytest.mark.parametrize("num_outputs", [16, 592])
@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 8, 17, 300])
def test_of_groups_and_of_four_bits_too(loops, num_rows, num_outputs, kind, group, has_bias):
    """Products are those of the numbers that the weight stands for, which no bf16 has rounded."""
    weight, exact = random_weight(kind, num_outputs, 192, torch.bfloat16, group=group)
    bias = torch.randn(num_outputs).bfloat16() if has_bias else None
    x = torch.randn(num_rows, 192).bfloat16()
    got = loops.few_rows_linear(weight)(x, bias).double()
    want = F.linear(x.double(), exact, None if bias is None else bias.double())
    torch.testing.assert_close(got, want, atol=5e-3 if "fp8" in kind else 1e-5, rtol=2**-8)


@pytest.mark.parametrize("has_zeros", [False, True])
def test_every_element_of_four_bits_is_its_number(loops, has_zeros):
    """GPTQ's zeros go to 16."""
    elements = torch.arange(16, dtype=torch.uint8).repeat(32, 2)
    zeros = torch.arange(17, dtype=torch.uint8).repeat(2)[:32, None].contiguous() if has_zeros else None
    weight = QuantizedWeight(pack_int4(elements, 32), torch.ones(32, 1), zeros, torch.bfloat16)
    got = loops.few_rows_linear(weight)(torch.eye(32).bfloat16(), None)
    assert torch.equal(got.float().T, elements.float() - (8 if zeros is None else zeros.float()))


@pytest.mark.parametrize("num_rows", [1, 2, 8, 17])
def test_of_mxfp4_too(loops, num_rows):
    numbers = torch.randint(256, (48, 96), dtype=torch.uint8)
    scales = torch.randint(120, 130, (48, 6), dtype=torch.uint8)
    x, exact = torch.randn(num_rows, 192).bfloat16(), dequantize_mxfp4(numbers, scales, torch.float64)
    linear = loops.few_rows_mxfp4(numbers, scales)
    torch.testing.assert_close(linear(x, None).double(), F.linear(x.double(), exact), atol=1e-3, rtol=2**-8)
    assert loops.few_rows_mxfp4(numbers[:40], scales[:40]) is None


def test_few_bits_stay_few(loops):
    """Beside the elements there are scales in fp32 and zeros in bytes, and a bias of its own."""
    weight, _ = random_weight("int4", 64, 1024, torch.bfloat16, group=128)
    plain = loops.few_rows_linear(torch.zeros(64, 1024).bfloat16())
    assert loops.few_rows_linear(weight).num_bytes == 64 * (1024 // 2 + 8 * 5 + 2)
    assert plain.num_bytes == 64 * (2 * 1024 + 2)


def test_not_a_number_of_eight_bits_is_left_to_others(loops):
    weight = fp8_weight(16, 32)
    weight.elements.view(torch.uint8)[3, 7] = 255
    assert loops.few_rows_linear(weight) is None, "NaN would become a number"


@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(24, 32), (32, 24), (33, 48)])
def test_other_sizes_are_left_to_others(loops, num_outputs, num_inputs):
    assert loops.few_rows_linear(torch.zeros(num_outputs, num_inputs).bfloat16()) is None


def test_inputs_of_another_width_are_refused(loops):
    with pytest.raises(AssertionError):
        loops.few_rows_linear(torch.zeros(16, 32).bfloat16())(torch.zeros(1, 48).bfloat16(), None)
