from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

from kernels import ordered_linear
from kernels.linear_add_norm import DeferredNorm
from service.layers import linear_method
from service.layers.linear import Linear
from service.layers.linear_method import KernelMethod, KernelRows, OrderedBy, OrderedMethod
from service.layers.projection import use_choices
from service.runner.choices import sum_orders
from service.runner.choices.made_for import MadeFor
from service.runner.choices.step_choices import StepChoices
from service.runner.choices.sum_orders import with_sum_orders

WIDE, NARROW = (4096, 2048), (64, 128)


@pytest.fixture
def linears(monkeypatch):
    """Two of each shape, as a GPU would have them."""
    monkeypatch.setattr(linear_method, "takes_weight", lambda weight: True)
    shapes = WIDE, NARROW, WIDE, NARROW
    with torch.device("meta"):
        made = [Linear(size, features) for features, size in shapes]
    for linear, (features, size) in zip(made, shapes, strict=True):
        linear.weight = nn.Parameter(torch.zeros(1).bfloat16().expand(features, size), requires_grad=False)
    use_choices(made, dict.fromkeys({each.shape_name for each in made}, KernelRows()), torch.device("cpu"))
    return made


def seen(monkeypatch, few, cublas):
    asked = []
    monkeypatch.setattr(sum_orders, "few_rows_agree", lambda weight, arrivals: few)
    monkeypatch.setattr(
        sum_orders, "cublas_agrees", lambda weight, rows: (asked.append((weight.shape, rows)), cublas)[1]
    )
    return asked


CHOICES = {"4096x2048": KernelRows(skinny=8), "64x128": KernelRows(skinny=16)}


@pytest.mark.parametrize("cublas", [True, False])
def test_where_cublas_sums_otherwise_tiles_multiply_and_the_log_says_so(cublas, linears, monkeypatch, caplog):
    """A weight that cuBLAS never multiplies is not asked of it."""
    asked = seen(monkeypatch, few=True, cublas=cublas)
    with caplog.at_level(logging.WARNING, "headrace"):
        choices = with_sum_orders(linears, CHOICES, 512)
    assert asked == [(WIDE, 512)]
    wide = OrderedBy.CUBLAS if cublas else OrderedBy.TILES
    assert choices == {"4096x2048": KernelRows(skinny=8, ordered=wide), "64x128": KernelRows(skinny=16)}
    assert [record.message for record in caplog.records] == (
        []
        if cublas
        else ["deterministic: cuBLAS sums 4096x2048 in another order than our kernels here, so these compute it"]
    )


def test_where_few_rows_sum_otherwise_there_is_no_one_order(linears, monkeypatch, caplog):
    asked = seen(monkeypatch, few=False, cublas=True)
    with caplog.at_level(logging.WARNING, "headrace"):
        choices = with_sum_orders(linears, CHOICES, 512)
    assert not asked and {each.ordered for each in choices.values()} == {OrderedBy.NOTHING}
    assert len(caplog.records) == 2
    use_choices(linears, choices, torch.device("cpu"))
    assert not any(each.can_order_sums for each in linears)


def test_what_was_seen_travels_with_the_choices(linears, monkeypatch):
    seen(monkeypatch, few=True, cublas=True)
    weights = {"4096x2048": 2, "64x128": 2}
    made_for = MadeFor("1", "H200", 0, {}, "Llama", weights, "bfloat16", 8, 64, enforce_eager=False)
    choices = StepChoices(made_for, with_sum_orders(linears, CHOICES, 512), ())
    read = StepChoices.from_json(choices.to_json())
    assert read == choices and "4096x2048: skinny up to 8, add+norm none, gated none, ordered by cublas;" in str(read)
    use_choices(linears, read.linears, torch.device("cpu"))
    methods = [each.own_method.ordered() for each in linears]
    assert [method.by_cublas for method in methods if isinstance(method, OrderedMethod)] == [True, False] * 2


def test_what_is_not_known_of_sums_is_left_as_it_is(monkeypatch):
    """A CPU's weights, say: the method has no one order."""
    linear = Linear(128, 64)
    use_choices([linear], {"64x128": KernelRows()}, torch.device("cpu"))
    assert isinstance(linear.own_method, KernelMethod)
    assert with_sum_orders([linear], {"64x128": KernelRows(skinny=4)}, 512) == {"64x128": KernelRows(skinny=4)}


@pytest.mark.gpu
@pytest.mark.parametrize("by_cublas", [True, False])
@torch.inference_mode()
def test_the_choice_decides_who_multiplies(by_cublas, monkeypatch):
    asked = []

    def watch(name):
        multiply = getattr(ordered_linear, name)
        monkeypatch.setattr(ordered_linear, name, lambda *args, **how: (asked.append(name), multiply(*args, **how))[1])

    watch("unsplit_linear_triton")
    watch("unsplit_add_norm_triton")
    weight = torch.randn(4096, 4096, device="cuda").bfloat16() / 64
    x, arrivals = torch.randn(200, 4096, device="cuda").bfloat16(), torch.zeros(128, dtype=torch.int32, device="cuda")
    method = KernelMethod(
        weight, None, arrivals, KernelRows(ordered=OrderedBy.CUBLAS if by_cublas else OrderedBy.TILES)
    )
    ordered = method.ordered()
    assert ordered is not None
    normed, total = ordered.add_and_norm(x, x, weight[0], 1e-5)
    assert isinstance(normed, DeferredNorm)
    product = ordered.multiply(normed)
    assert asked == (["unsplit_add_norm_triton", "unsplit_linear_triton"] if by_cublas else [])
    other = OrderedMethod(weight, None, arrivals, by_cublas=not by_cublas)
    again, other_total = other.add_and_norm(x, x, weight[0], 1e-5)
    assert torch.equal(total, other_total) and torch.equal(product, other.multiply(again))
