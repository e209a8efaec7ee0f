from __future__ import annotations

import pytest
import torch

from kernels.copy_blocks import copy_blocks
from tests.kernels.tolerances import DTYPES


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pairs", [[], [(0, 4)], [(0, 4), (0, 2), (3, 1)]])
def test_copies_whole_blocks_and_nothing_else(pairs, dtype):
    storage = torch.randn(5, 3, 2, 16, 2, 8).to(dtype)
    storage[4] = float("nan")
    want = storage.clone()
    for source, destination in pairs:
        want[destination] = storage[source]
    sources, destinations = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).unbind(1)
    copy_blocks(storage, sources, destinations)
    assert torch.equal(storage.view(torch.uint8), want.view(torch.uint8))
