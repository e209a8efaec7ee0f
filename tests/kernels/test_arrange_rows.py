from __future__ import annotations

import pytest
import torch

from kernels.arrange_rows import arrange_rows, arrange_rows_triton
from kernels.expert_blocks import expert_blocks, expert_blocks_triton
from tests.kernels.lanes import LANES


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("block_m", [8, 16, 32])
@pytest.mark.parametrize(("num_tokens", "size"), [(0, 128), (1, 32), (21, 352)])
@pytest.mark.parametrize("is_of_pairs", [False, True])
def test_each_element_lies_where_it_says(num_tokens, size, is_of_pairs, block_m, lane):
    experts = lane.put(torch.stack([torch.randperm(4)[:2] for _ in range(num_tokens)] or [torch.zeros(2)])[:num_tokens])
    blocks = lane(expert_blocks, expert_blocks_triton)(experts.int(), 5, block_m)
    packed = lane.put(torch.randn(2 * num_tokens if is_of_pairs else num_tokens, size + 3))
    packed[:, size:] = float("nan")
    top_k = 1 if is_of_pairs else 2
    got = lane(arrange_rows, arrange_rows_triton)(packed[:, :size], blocks, top_k)
    assert got.shape == (len(blocks.pairs), -(-size // 128), 4, block_m, 32)
    k = torch.arange(128 * got.shape[1], device=packed.device)
    q, h, i, e, p = k // 32 % 4, k // 16 % 2, k // 4 % 4, k // 2 % 2, k % 2
    for block, (pairs, expert) in enumerate(zip(blocks.pairs.tolist(), blocks.block_experts.tolist(), strict=True)):
        for m, pair in enumerate(pairs if expert >= 0 else []):
            want = torch.zeros(len(k), device=packed.device)
            if pair >= 0:
                want[:size] = packed[pair // top_k, :size]
            assert torch.equal(got[block, k // 128, 2 * h + p, m, 8 * q + 2 * i + e], want)
