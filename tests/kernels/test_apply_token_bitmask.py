from __future__ import annotations

import pytest
import torch

from kernels.apply_token_bitmask import apply_token_bitmask, apply_token_bitmask_triton
from tests.kernels.lanes import LANES
from tests.kernels.tolerances import DTYPES


@pytest.mark.parametrize("lane", LANES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "size"), [(0, 8), (1, 1), (5, 123), (3, 32), (2, 4200)])
def test_forbids_what_the_bits_do_not_allow(rows, size, dtype, lane):
    packed = torch.randn(rows, size + 5).to(dtype)
    packed[:, size:] = float("nan")
    allowed = torch.rand(4, size) < 0.5
    words = [
        [sum(int(row[i]) << (i % 32) for i in range(w, min(w + 32, size))) for w in range(0, size, 32)]
        for row in allowed
    ]
    # bits beyond the vocabulary are set in one mask and not in another
    bitmask = torch.tensor(words, dtype=torch.int64).view(4, -1)
    bitmask[0, -1] |= (2**32 - 1) ^ ((1 << ((size - 1) % 32 + 1)) - 1)
    bitmask = torch.where(bitmask >= 2**31, bitmask - 2**32, bitmask).to(torch.int32)
    mask_rows = torch.tensor([2, -1, 0, 2, 3][:rows], dtype=torch.int32)
    want = packed.clone()
    for row, mask in enumerate(mask_rows.tolist()):
        if mask >= 0:
            want[row, :size][~allowed[mask]] = float("-inf")
    on_device = lane.put(packed)
    run = lane(apply_token_bitmask, apply_token_bitmask_triton)
    run(on_device[:, :size], lane.put(bitmask), lane.put(mask_rows))
    assert torch.equal(on_device.cpu().view(torch.uint8), want.view(torch.uint8))
