from __future__ import annotations

import torch

from kernels.lora_tensors import check_lora_tensors
from loadtest.bench.kernel_cases import LORA_RANK, all_cases, lora_tables
from tests.kernels.lora_case import token_slots


def test_every_case_has_a_name_and_moves_bytes():
    cases = list(all_cases())
    assert len({(case.name, case.rows) for case in cases}) == len(cases)
    assert all(case.num_bytes > 0 and case.rows > 0 for case in cases)


def test_adapters_share_no_row_and_fill_their_pool():
    tables = lora_tables(3, 32, (16, 8))
    check_lora_tensors(torch.zeros(2, 24, dtype=torch.bfloat16), token_slots([1, 3]), tables)
    starts = {}
    for offsets, sizes in ((tables.a_offsets, (32, 32)), (tables.b_offsets, (16, 8))):
        for slot in range(1, 4):
            for part, size in enumerate(sizes):
                starts |= dict.fromkeys(offsets[slot, part, :LORA_RANK].tolist(), size)
    assert len(starts) == 3 * 2 * 2 * LORA_RANK
    end = 0
    for start in sorted(starts):
        assert start == end and start % tables.alignment == 0
        end += starts[start]
    assert end == len(tables.pool)
