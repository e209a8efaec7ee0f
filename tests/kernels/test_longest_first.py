from __future__ import annotations

import pytest
import torch

from kernels.longest_first import longest_first_reference, longest_first_triton
from tests.kernels.lanes import GPU, INTERPRET


@pytest.mark.parametrize("lane", [INTERPRET, GPU])
@pytest.mark.parametrize("lens", [[], [7], [0, 0, 0], [5, 900, 0, 5, 64, 900, 5], [(337 * i) % 900 for i in range(70)]])
def test_the_longest_come_first_and_equal_ones_in_their_order(lens, lane):
    lens = torch.tensor(lens, dtype=torch.int32)
    want = torch.tensor(sorted(range(len(lens)), key=lambda seq: -int(lens[seq])), dtype=torch.int32)
    assert longest_first_reference(lens).equal(want)
    for at_one_look in (16, 1024):
        assert longest_first_triton(lane.put(lens), at_one_look).cpu().equal(want)
