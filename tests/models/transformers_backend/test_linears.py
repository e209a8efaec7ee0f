"""Linears that read the same rows are one product, whoever asks first, and are what they were."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from service.layers.linear import Linear, linear_tensors
from service.layers.linear_method import Normed, PlainMethod
from service.models.transformers_backend.linears import use_our_linears


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(8, 6)
        self.k = nn.Linear(8, 4)
        self.v = nn.Linear(8, 2)


class CountedMethod(PlainMethod):
    """Notes the rows that it multiplies."""

    def __init__(self, linear: Linear) -> None:
        super().__init__(linear.weight, linear.bias)
        self.inputs: list[Tensor] = []

    def multiply(self, x: Normed, *, is_beside: bool = False) -> Tensor:
        self.inputs.append(x)
        return super().multiply(x)


@pytest.fixture
def blocks() -> tuple[Block, Block, list[Tensor]]:
    """Theirs, ours with the same weights, and the inputs of the merged product so far."""
    theirs, ours = Block(), Block()
    (named,) = use_our_linears(ours, [["q", "k", "v"]])
    assert named.names == ("q", "k", "v") and named.linear.out_features == (6, 4, 2)
    tensors = linear_tensors([named])
    for name, tensor in theirs.state_dict().items():
        tensors[name].copy_(tensor)
    counted = CountedMethod(named.linear)
    named.linear.use(counted)
    return theirs, ours, counted.inputs


@pytest.mark.parametrize("order", list(itertools.permutations("qkv")))
def test_one_product_serves_all_parts_in_any_order(blocks, order):
    theirs, ours, products = blocks
    for _ in range(2):
        x = torch.randn(1, 5, 8)
        for name in order:
            torch.testing.assert_close(getattr(ours, name)(x), getattr(theirs, name)(x))
    assert len(products) == 2, "one product for each x"


def test_other_rows_are_never_taken_for_the_ones_before(blocks):
    theirs, ours, _ = blocks
    x, y = torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    for name, rows in (("q", x), ("k", y), ("v", x), ("q", y)):
        torch.testing.assert_close(getattr(ours, name)(rows), getattr(theirs, name)(rows))


def test_parts_with_and_without_bias_are_apart():
    block = Block()
    block.v = nn.Linear(8, 2, bias=False)
    ours = use_our_linears(block, [["q", "k", "v"]])
    assert [(each.names, each.linear.bias is not None) for each in ours] == [(("q", "k"), True), (("v",), False)]
