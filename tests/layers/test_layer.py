from __future__ import annotations

import torch
from torch import nn

from service.layers.layer import Layer


class Half(Layer):
    def forward(self, x):
        return x / 2


class Outer(Layer):
    def __init__(self):
        super().__init__()
        self.inner = Half()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.inner(x) + self.weight


def test_a_call_is_the_forward_of_its_own_class():
    assert Half()(torch.tensor(4.0)) == 2
    assert Outer()(torch.tensor(4.0)).tolist() == [3, 3, 3]


def test_it_is_a_module_all_the_same():
    outer = Outer()
    assert [name for name, _ in outer.named_parameters()] == ["weight"]
    assert [name for name, _ in outer.named_modules()] == ["", "inner"]


def test_settled_attributes_are_the_registered_ones():
    outer = Outer()
    outer.settle()
    assert vars(outer)["inner"] is outer._modules["inner"]
    assert vars(outer)["weight"] is outer._parameters["weight"]


def test_a_submodule_set_later_is_found():
    """As an adapter does that wraps a linear."""
    outer = Outer()
    outer.settle()
    other = Half()
    outer.inner = other
    assert outer.inner is other
