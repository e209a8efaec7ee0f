from __future__ import annotations

import torch
import torch.nn.functional as F

from kernels.rms_norm import add_rms_norm_reference
from service.layers.linear import Linear
from service.layers.linear_method import PlainMethod
from service.layers.packed_weight import WeightForm
from service.layers.shard import even_share
from service.layers.summed_method import SummedMethod
from tests.ranks import Ranks


def whole() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.randn(*shape, generator=generator) for shape in ((5, 12), (7, 12), (7,)))


def summed(parallel, form):
    """By a linear that has some of the inputs, as it is and once more around its method."""
    x, weight, bias = whole()
    kept = even_share(12, parallel)
    linear = Linear(12, 7, bias=True)
    linear.shard_inputs(kept, parallel)
    linear.weight.data.copy_(weight[:, kept.start : kept.stop])
    if linear.bias is not None:
        linear.bias.data.copy_(bias)
    if form is not None:
        linear.pack(form)
    part = x[:, kept.start : kept.stop].contiguous()
    with torch.inference_mode():
        before = linear(part)
        linear.extend(lambda method: method)
        after = linear(part)
    method = linear.method
    with torch.inference_mode():
        normed = method.add_and_norm(part, x[:, :7].clone(), bias, 1e-5)
    assert method.silu_and_mul(part) is None
    return before, after, isinstance(linear.own_method, SummedMethod), linear.bias is None, normed


def test_the_ranks_products_are_summed_once_and_the_bias_is_added_once(two_ranks: Ranks):
    x, weight, bias = whole()
    for form in (None, WeightForm.ONEDNN):
        answers = two_ranks.run(summed, form)
        want_normed = add_rms_norm_reference(answers[0][0], x[:, :7], bias, 1e-5)
        for before, after, own_is_summed, _, normed in answers:
            torch.testing.assert_close(before, F.linear(x, weight, bias), atol=1e-5, rtol=1e-5)
            assert torch.equal(before, answers[0][0])
            assert torch.equal(after, before), "extended, it is summed as before"
            assert not own_is_summed
            torch.testing.assert_close(normed, want_normed)
        assert [without for *_, without, _ in answers] == [False, True]


def test_what_was_chosen_is_the_own_products():
    method = PlainMethod(torch.zeros(2, 2), None)
    assert SummedMethod(method, None).choice is method.choice
