from __future__ import annotations

import pytest
import torch

from kernels.fp8_rows import fp8_rows
from kernels.linear_add_norm import DeferredNorm, linear_add_norm
from kernels.rms_norm import add_rms_norm
from kernels.silu_and_mul import silu_and_mul
from kernels.skinny_linear import new_arrivals
from service.layers.linear_method import KernelMethod, KernelRows, OrderedMethod, PackedMethod, PlainMethod, RowRange
from service.layers.packed_weight import WeightForm, pack_weight
from tests.kernels.quantized_weights import KINDS, random_weight

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
IN, OUT, EPS = 64, 96, 1e-5
CLOSE = {"atol": 2e-3, "rtol": 2e-3}


def weight_and_bias(device="cpu", *, has_bias):
    return torch.randn(OUT, IN, device=device) / 8, torch.randn(OUT, device=device) if has_bias else None


def methods(weight, bias):
    """Every kind of method that there is for this weight, but the plain one."""
    arrivals = new_arrivals(OUT, weight.device)
    yield KernelMethod(weight, bias, arrivals)
    yield KernelMethod(weight, bias, arrivals, KernelRows(skinny=16))
    yield KernelMethod(weight, bias, arrivals, KernelRows(skinny=64, add_norm=RowRange(1, 64)))
    if bias is None and not weight.is_cuda:  # the kernel takes 16 bits only, its reference any
        yield KernelMethod(weight, bias, arrivals, KernelRows(gated=RowRange(65, 128)))
    for form in WeightForm:
        packed = pack_weight(weight, form)
        if packed is not None:
            yield PackedMethod(packed, bias)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 16, 17, 64, 65])
@torch.inference_mode()
def test_every_method_is_the_plain_one_and_declines_or_gives_its_steps_at_once(num_rows, has_bias, device):
    weight, bias = weight_and_bias(device, has_bias=has_bias)
    x, residual = torch.randn(num_rows, IN, device=device), torch.randn(num_rows, OUT, device=device)
    norm_weight = torch.randn(OUT, device=device)
    product = PlainMethod(weight, bias).multiply(x)
    want_normed, want_total = add_rms_norm(product, residual.clone(), norm_weight, EPS)
    for method in methods(weight, bias):
        torch.testing.assert_close(method.multiply(x), product, **CLOSE)
        at_once = method.add_and_norm(x, residual.clone(), norm_weight, EPS)
        if at_once is not None:
            normed, total = at_once
            torch.testing.assert_close(total, want_total, **CLOSE)
            torch.testing.assert_close(normed.divided(), want_normed, **CLOSE)
        gated = method.silu_and_mul(x)
        if gated is not None:
            torch.testing.assert_close(gated, silu_and_mul(product), **CLOSE)


@pytest.mark.parametrize("has_bias", [False, True])
@torch.inference_mode()
def test_every_method_takes_a_norm_whose_division_was_left_to_it(has_bias):
    """Whichever method the product before it has."""
    before, residual = torch.randn(IN, 40) / 8, torch.randn(9, IN)
    deferred, _ = linear_add_norm(torch.randn(9, 40), before, None, residual, torch.randn(IN), EPS)
    weight, bias = weight_and_bias(has_bias=has_bias)
    want = PlainMethod(weight, bias).multiply(deferred.divided())
    for method in (PlainMethod(weight, bias), *methods(weight, bias)):
        torch.testing.assert_close(method.multiply(deferred), want, **CLOSE)
        gated = method.silu_and_mul(deferred)
        if gated is not None:
            torch.testing.assert_close(gated, silu_and_mul(want), **CLOSE)


@pytest.mark.each_once
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_rows", [1, 64, 65, 256, 300])
@torch.inference_mode()
def test_quantized_weights_are_multiplied_by_as_what_they_stand_for(num_rows, kind, device):
    weight, exact = random_weight(kind, OUT, IN, torch.float32, device, group=32)
    bias, norm_weight = torch.randn(OUT, device=device), torch.randn(OUT, device=device)
    x, residual = torch.randn(num_rows, IN, device=device), torch.randn(num_rows, OUT, device=device)
    plain = PlainMethod(exact.float(), bias)
    rows = KernelRows(skinny=256, add_norm=RowRange(1, 64))
    assert rows.fits(weight) and not rows.fits(exact)
    method = KernelMethod(weight, bias, new_arrivals(OUT, weight.device), rows)
    torch.testing.assert_close(method.multiply(x), plain.multiply(x), **CLOSE)
    assert method.silu_and_mul(x) is None
    at_once = method.add_and_norm(x, residual, norm_weight, EPS)
    assert (at_once is None) is (num_rows > 64)
    if at_once is not None:
        normed, total = at_once
        torch.testing.assert_close(total, plain.multiply(x) + residual, **CLOSE)
        back, exact = random_weight(kind, OUT, OUT, torch.float32, device, group=32)
        behind = KernelMethod(back, None, new_arrivals(OUT, weight.device))
        product = PlainMethod(exact.float(), None).multiply(normed.divided())
        torch.testing.assert_close(behind.multiply(normed), product, **CLOSE)
        torch.testing.assert_close(behind.silu_and_mul(normed), silu_and_mul(product), **CLOSE)


@pytest.mark.gpu
@torch.inference_mode()
def test_rows_that_would_be_rounded_to_fp8_may_come_so():
    weight, _ = random_weight("fp8", 1024, 2048, torch.bfloat16, "cuda")
    method = KernelMethod(
        weight, None, new_arrivals(1024, weight.device), KernelRows(skinny=16, add_norm=RowRange(1, 17))
    )
    assert [rows for rows in (1, 16, 17, 18, 300) if method.takes_fp8(rows)] == [18, 300]
    for rows in (18, 300):
        x = torch.randn(rows, 2048, device="cuda").bfloat16()
        assert torch.equal(method.multiply(fp8_rows(x)), method.multiply(x))


def test_no_other_method_takes_rows_of_fp8():
    weight, _ = weight_and_bias(has_bias=False)
    exact, _ = random_weight("fp8", OUT, IN, torch.float32)
    for method in (
        PlainMethod(weight, None),
        *methods(weight, None),
        KernelMethod(exact, None, new_arrivals(OUT, weight.device)),
    ):
        assert not any(method.takes_fp8(rows) for rows in (1, 64, 300))


def test_nothing_is_computed_at_once_but_for_the_rows_that_were_chosen():
    weight, _ = weight_and_bias(has_bias=False)
    method = KernelMethod(weight, None, new_arrivals(OUT, weight.device), KernelRows(add_norm=RowRange(17, 64)))
    residual, norm_weight = torch.randn(80, OUT), torch.randn(OUT)
    for rows in (1, 16, 17, 64, 65):
        x = torch.randn(rows, IN)
        assert (method.add_and_norm(x, residual[:rows], norm_weight, EPS) is not None) == (17 <= rows <= 64)
        assert method.silu_and_mul(x) is None


@pytest.mark.parametrize(
    "too_many", [{"skinny": 257}, {"add_norm": RowRange(1, 65)}, {"gated": RowRange(1, 129)}], ids=str
)
def test_no_kernel_is_asked_for_more_rows_than_it_takes(too_many):
    with pytest.raises(ValueError, match="rows, above the limit of"):
        KernelRows(**too_many)


def test_a_range_of_rows_holds_both_its_ends():
    assert [n for n in range(20) if n in RowRange(17, 18)] == [17, 18]
    assert [n for n in range(20) if n in RowRange()] == []
    assert (str(RowRange(17, 64)), str(RowRange())) == ("17-64", "none")


@pytest.mark.parametrize("device", DEVICES)
def test_one_order_of_sums_is_a_gpus(device):
    """Of bf16, and of plain weights."""
    weight = torch.randn(64, 128, device=device)
    arrivals = new_arrivals(64, weight.device)
    assert KernelMethod(weight, None, arrivals).ordered() is None
    narrow = KernelMethod(weight.bfloat16(), None, arrivals)
    assert (narrow.ordered() is None) == (device == "cpu")
    ordered = OrderedMethod(weight.bfloat16(), None, arrivals)
    x = torch.randn(5, 128, device=device).bfloat16()
    torch.testing.assert_close(ordered.multiply(x), narrow.multiply(x), atol=0.3, rtol=0.02)
    assert ordered.ordered() is ordered


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_rows", [1, 64, 65, 300])
@torch.inference_mode()
def test_in_one_order_steps_are_had_at_once_for_any_number_of_rows(num_rows, device):
    """Or for none: a row's rounding may not depend on how many there are."""

    def random(*shape, scale=1.0):
        return (torch.randn(*shape, device=device) * scale).bfloat16()

    weight, behind = random(OUT, IN, scale=IN**-0.5), random(2 * OUT, OUT, scale=OUT**-0.5)
    arrivals = new_arrivals(2 * OUT, weight.device)
    method = OrderedMethod(weight, None, arrivals)
    x, residual, norm_weight = random(num_rows, IN), random(num_rows, OUT), random(OUT)
    normed, total = method.add_and_norm(x, residual, norm_weight, EPS)
    want_normed, want_total = add_rms_norm(PlainMethod(weight, None).multiply(x), residual.clone(), norm_weight, EPS)
    torch.testing.assert_close(total, want_total, atol=0.06, rtol=0.02)
    assert isinstance(normed, DeferredNorm)
    torch.testing.assert_close(normed.divided(), want_normed, atol=0.06, rtol=0.02)
    next_method = OrderedMethod(behind, None, arrivals)
    product = PlainMethod(behind, None).multiply(normed.divided())
    torch.testing.assert_close(next_method.multiply(normed), product, atol=0.06, rtol=0.02)
    torch.testing.assert_close(next_method.silu_and_mul(normed), silu_and_mul(product), atol=0.06, rtol=0.02)
    assert next_method.silu_and_mul(normed.divided()) is None
    odd = OrderedMethod(behind[:-8], None, arrivals)  # halves that no tile copies
    assert odd.silu_and_mul(normed) is None


def test_quantized_weights_have_no_one_order():
    weight, _ = random_weight(KINDS[0], 64, 128, torch.bfloat16, "cpu")
    assert KernelMethod(weight, None, new_arrivals(64, torch.device("cpu"))).ordered() is None
