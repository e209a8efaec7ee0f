"""tests/kernels/test_one_shot_all_reduce.py launches both kernels in turn; here, this one alone, with parts of x that
are short or empty."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.rank_kernels import interpreted
from tests.kernels.test_one_shot_all_reduce import INTERPRETED, check
from tests.ranks import Ranks


@pytest.mark.interpret
def test_a_rank_may_have_nothing_to_sum(two_ranks: Ranks, tmp_path):
    given = [("two", shape, torch.float32) for shape in ((1,), (64,), (65,), (130,), (9000,))]
    for results, _ in two_ranks.run(interpreted, tmp_path, given):
        check(given, results, INTERPRETED)
