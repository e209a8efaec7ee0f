from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from kernels.quantized_weight import QuantizedWeight
from service.errors import ConfigError
from service.layers.embedding import OutputHead, TokenEmbedding
from service.layers.linear import Linear, Product
from service.layers.linear_method import KernelRows, PackedMethod, PlainMethod
from service.layers.packed_weight import WeightForm, can_pack, stays_quantized
from service.layers.projection import use_choices
from service.layers.weight_storage import WeightStorage
from tests.kernels.quantized_weights import KINDS, random_weight


def projections():
    embedding = TokenEmbedding(24, 16)
    every = [Linear(16, 24, bias=True), OutputHead(24, 16, None), OutputHead(24, 16, embedding)]
    for module in (embedding, *every):
        for parameter in module.parameters():
            parameter.data.normal_()
    return every


def test_until_a_method_is_given_it_multiplies_by_the_weight_as_it_is():
    x = torch.randn(5, 16)
    for projection in projections():
        for _ in range(2):
            projection.plain_weight.data.normal_()
            assert torch.equal(projection(x), F.linear(x, projection.plain_weight, projection.bias))


def test_the_method_that_it_is_given_multiplies():
    x = torch.randn(5, 16)
    for projection in projections():
        other = torch.randn(7, 16)
        projection.use(PlainMethod(other, None))
        assert torch.equal(projection(x), F.linear(x, other))


def test_packed_it_is_the_same_function_by_another_method():
    if not can_pack(torch.float32):
        pytest.skip("this torch has no packed linears")
    x = torch.randn(5, 16)
    with torch.inference_mode():
        for projection in projections():
            want = projection(x)
            assert projection.pack(WeightForm.ONEDNN) is WeightForm.ONEDNN
            assert isinstance(projection.method, PackedMethod)
            torch.testing.assert_close(projection(x), want, atol=1e-4, rtol=1e-4)


def test_a_plain_weight_is_given_up_unless_it_is_kept():
    if not can_pack(torch.float32):
        pytest.skip("this torch has no packed linears")
    given_up, kept = projections()[:2], projections()
    weights = [projection.plain_weight for projection in kept]
    for projection in (*given_up, *kept):
        if projection in kept:
            projection.keep_plain_weight()
        projection.pack(WeightForm.ONEDNN)
    for projection, weight in zip(kept, weights, strict=True):
        assert projection.plain_weight is weight
        assert isinstance(projection.method, PackedMethod)
    for projection in given_up:
        with pytest.raises((AttributeError, AssertionError)):
            _ = projection.plain_weight


def test_a_product_has_its_value_when_it_is_asked():
    linear, *_ = projections()
    x = torch.randn(5, 16)
    assert torch.equal(Product(linear, x).value(), linear(x))


def test_weights_of_one_shape_are_multiplied_by_in_one_way():
    each = [*projections(), Linear(8, 16), Linear(8, 16)]
    choices = {"24x16": KernelRows(skinny=3), "16x8": WeightForm.PLAIN}
    weights = [projection.plain_weight for projection in each]
    use_choices(each, choices, torch.device("cpu"))
    for projection, weight in zip(each, weights, strict=True):
        assert projection.method.choice is choices[f"{weight.shape[0]}x{weight.shape[1]}"]
    assert [projection.method.weight is weight for projection, weight in zip(each[:3], weights, strict=False)] == [
        True
    ] * 3


def test_a_form_that_this_machine_has_not_is_refused_by_name():
    linear = Linear(7, 9)  # no multiples of what the loops take
    with pytest.raises(ConfigError, match=r"choices: linears\.9x7: this machine does not support form loops for"):
        use_choices([linear], {"9x7": WeightForm.LOOPS}, torch.device("cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_quantized_weight_is_multiplied_by_as_it_is_on_a_cpu(kind):
    """Not by the plain weight that it stands for, which rounds again and takes more memory: there never is one."""
    if not stays_quantized(96, 192, torch.bfloat16):
        pytest.skip("this machine runs no compiled loops")
    linear = Linear(192, 96, bias=True).bfloat16().requires_grad_(False)
    weight, exact = random_weight(kind, 96, 192, torch.bfloat16)
    linear.store(Held(weight), dequantized=False)
    linear.finish_reading(torch.bfloat16)
    x = torch.randn(40, 192).bfloat16()
    linear.bias.data.zero_()
    assert linear.pack(WeightForm.BOTH) is WeightForm.LOOPS
    assert not any(parameter.dim() == 2 for parameter in linear.parameters())
    with torch.inference_mode():
        got = linear(x)
    want = (x.double() @ exact.T).bfloat16()
    assert (got != want).float().mean() < 0.02, "rounded once; sums in fp32 may fall on the other side"
    assert linear.can_order_sums


def test_a_quantized_weight_with_nan_is_made_plain():
    if not stays_quantized(32, 64, torch.bfloat16):
        pytest.skip("this machine runs no compiled loops")
    linear = Linear(64, 32).bfloat16().requires_grad_(False)
    elements = torch.ones(32, 64).to(torch.float8_e4m3fn)
    elements.view(torch.uint8)[3, 5] = 0x7F
    linear.store(Held(QuantizedWeight(elements, torch.ones(32, 1), None, torch.bfloat16)), dequantized=False)
    linear.finish_reading(torch.bfloat16)
    assert linear.pack(WeightForm.LOOPS) is WeightForm.ONEDNN
    with torch.inference_mode():
        got = linear(torch.ones(1, 64).bfloat16())[0]
    assert got.isnan().tolist() == [n == 3 for n in range(32)]


class Held(WeightStorage):
    """What has been read."""

    form = "held"

    def __init__(self, weight):
        super().__init__()
        self._weight = weight

    def checkpoint_tensors(self, names):
        return {}

    def checkpoint_shards(self, names, shards):
        return {}

    def finished(self, dtype):
        return self._weight
