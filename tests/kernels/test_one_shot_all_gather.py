"""tests/kernels/test_one_shot_all_reduce.py launches it among the others; here, alone, of what draws exchange."""

from __future__ import annotations

import pytest
import torch

from kernels.one_shot_all_gather import one_shot_all_gather_reference
from kernels.symmetric_memory import SymmetricMemory
from tests.kernels.rank_kernels import shared_memory
from tests.ranks import Ranks

SHAPES = [(1, 2), (256, 2), (0, 2), (1024,), (1025,)]


def gathered(parallel, folder):
    from kernels.one_shot_all_gather import one_shot_all_gather

    memory: SymmetricMemory = shared_memory(parallel, folder)
    mine = [
        torch.randn(shape, generator=torch.Generator().manual_seed(parallel.rank)).view(torch.int32) for shape in SHAPES
    ]
    return mine, [one_shot_all_gather(x, memory) for x in mine]


@pytest.mark.interpret
def test_every_rank_gets_what_every_rank_has(two_ranks: Ranks, tmp_path):
    (first, of_first), (second, of_second) = two_ranks.run(gathered, tmp_path)
    for one, other, *gathers in zip(first, second, of_first, of_second, strict=True):
        for each in gathers:
            assert torch.equal(each, one_shot_all_gather_reference([one, other]))
