from __future__ import annotations

import pytest
import torch

from kernels.route_to_experts import route_to_experts, route_to_experts_triton
from tests.kernels.lanes import LANES


@pytest.mark.pairwise
@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("renormalizes", [False, True])
@pytest.mark.parametrize(("num_experts", "top_k"), [(1, 1), (8, 2), (60, 4), (128, 8)])
@pytest.mark.parametrize("num_tokens", [0, 1, 17])
def test_the_largest_of_the_softmax(num_tokens, num_experts, top_k, renormalizes, lane):
    logits = lane.put(torch.randn(num_tokens, num_experts) * 3)
    experts, weights = lane(route_to_experts, route_to_experts_triton)(logits, top_k, renormalizes)
    want, chosen = logits.double().softmax(-1).topk(top_k, dim=-1)
    want = want / want.sum(-1, keepdim=True) if renormalizes else want
    assert torch.equal(experts.long(), chosen) and experts.dtype == torch.int32
    torch.testing.assert_close(weights.double(), want, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("lane", LANES[1:])
def test_equal_logits_go_to_the_first_experts(lane):
    experts, weights = lane(route_to_experts, route_to_experts_triton)(lane.put(torch.zeros(3, 10)), 4, True)
    assert experts.tolist() == [[0, 1, 2, 3]] * 3 and (weights == 0.25).all()


@pytest.mark.parametrize("lane", LANES)
def test_whatever_the_logits_are_the_experts_are_there(lane):
    logits = torch.randn(5, 6)
    logits[0], logits[1], logits[2, 3], logits[3, :5] = float("nan"), float("-inf"), float("inf"), float("-inf")
    experts, _ = lane(route_to_experts, route_to_experts_triton)(lane.put(logits), 3, False)
    assert (experts >= 0).all() and (experts < 6).all()
