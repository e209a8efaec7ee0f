from __future__ import annotations

import pytest
import torch

from kernels.expert_blocks import expert_blocks, expert_blocks_triton, most_blocks
from tests.kernels.lanes import GPU, LANES
from tests.kernels.replays import launched_and_replayed


def skewed(num_tokens: int, top_k: int, num_experts: int) -> torch.Tensor:
    """Distinct experts of each token, the first ones far more often."""
    chances = torch.arange(1, num_experts + 1).double() ** -1.5
    rows = [torch.multinomial(chances, top_k) for _ in range(num_tokens)]
    return torch.stack(rows).int() if rows else torch.empty(0, top_k, dtype=torch.int32)


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("block_m", [1, 16])
@pytest.mark.parametrize(("num_tokens", "top_k", "num_experts"), [(0, 2, 8), (1, 2, 8), (50, 4, 12), (300, 8, 30)])
def test_each_pair_is_in_a_block_of_its_expert(num_tokens, top_k, num_experts, block_m, lane):
    experts = skewed(num_tokens, top_k, num_experts)
    blocks = lane(expert_blocks, expert_blocks_triton)(lane.put(experts), num_experts, block_m)
    block_experts = blocks.block_experts.tolist()
    num_used = sum(expert >= 0 for expert in block_experts)
    assert len(block_experts) == most_blocks(experts.numel(), num_experts, block_m)
    assert block_experts[num_used:] == [-1] * (len(block_experts) - num_used)
    assert block_experts[:num_used] == sorted(block_experts[:num_used])
    found = {expert: list[int]() for expert in range(num_experts)}
    for expert, pairs in zip(block_experts[:num_used], blocks.pairs.tolist(), strict=False):
        assert pairs[0] >= 0, "a used block holds a pair"
        found[expert] += pairs
    flat = experts.flatten()
    for expert, pairs in found.items():
        own = (flat == expert).nonzero().flatten().tolist()
        assert pairs == own + [-1] * (-len(own) % block_m)
    assert {rows.expert: rows.pairs.tolist() for rows in blocks.by_expert} == {
        expert: [pair for pair in pairs if pair >= 0] for expert, pairs in found.items() if pairs
    }


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("is_spread", [True, False], ids=["spread", "one expert"])
def test_the_bound_holds_for_the_worst_batches(is_spread, lane):
    for num_pairs in (1, 16, 17, 40):
        flat = torch.arange(num_pairs) % 24 if is_spread else torch.full((num_pairs,), 23)
        blocks = lane(expert_blocks, expert_blocks_triton)(lane.put(flat[:, None].int()), 24, 16)
        assert sum(len(rows.pairs) for rows in blocks.by_expert) == num_pairs


@pytest.mark.parametrize("lane", [GPU])
def test_a_graph_holds_for_other_experts(lane):
    experts = lane.put(skewed(64, 8, 128))
    launched_and_replayed(lambda: expert_blocks(experts, 128, 16).block_experts)
