from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from service.layers.embedding import OutputHead, TokenEmbedding
from service.layers.linear import Linear, Product
from service.layers.linear_method import PackedMethod, PlainMethod
from service.layers.packed_weight import can_pack


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
            projection.pack(in_two_forms=True)
            assert isinstance(projection.method, PackedMethod)
            torch.testing.assert_close(projection(x), want, atol=1e-4, rtol=1e-4)


def test_a_product_has_its_value_when_it_is_asked():
    linear, *_ = projections()
    x = torch.randn(5, 16)
    assert torch.equal(Product(linear, x).value(), linear(x))
