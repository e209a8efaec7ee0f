from __future__ import annotations

import pytest
import torch

from kernels import widened_cache as module
from kernels.widened_cache import capacity_of, widened_cache, widened_cache_triton, widened_table
from tests.kernels.lanes import LANES
from tests.kernels.test_fp8_cache import fp8_case

BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM = 16, 3, 20


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("capacity", [100, 14, 4])
def test_a_sequence_that_has_room_is_there_in_order(capacity, dtype, lane):
    context_lens = [33, 0, 150, 5, 17]
    case, caches = fp8_case(context_lens, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, torch.float32, lane)
    rows, lens = torch.arange(5, device=lane.device), lane.put(case.context_lens)
    table = widened_table(rows, lens, case.block_table.shape[1], BLOCK_SIZE, capacity)
    columns = lane.put(case.block_table), rows, lens, table, dtype
    wide = lane(widened_cache, widened_cache_triton)(*caches, *columns)
    assert all(each.shape == (capacity, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM) and each.dtype == dtype for each in wide)
    # 3 blocks, none, 10, 1 and 2
    fits = [True, True, capacity >= 13, capacity >= 14, capacity >= 16]
    assert table.fitting.tolist() == [seq if fit else -1 for seq, fit in enumerate(fits)]
    assert table.others.tolist() == [-1 if fit else seq for seq, fit in enumerate(fits)]
    for seq, length in enumerate(context_lens):
        if fits[seq]:
            blocks = table.block_table[seq, : -(-length // BLOCK_SIZE)]
            for got, want in zip(wide, (case.keys[seq], case.values[seq]), strict=True):
                assert torch.equal(got[blocks.long()].flatten(0, 1)[:length].cpu().float(), want.to(dtype).float())


def test_the_memory_is_bounded():
    cell_bytes = 2 * 8 * 128 * 2
    assert capacity_of(4, 100, cell_bytes, 16) == 400
    assert capacity_of(128, 1000, cell_bytes, 16) * 16 * cell_bytes == module.MOST_BYTES
